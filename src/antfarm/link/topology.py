"""Which shards are connected, and what flows where. Pure.

A *wire* is one TCP connection with one purpose, so that on each connection frames of one kind come in
one order, whatever the rest of the mesh does:

    feed     step frames: the lead hands embedded rows to the other ranks of stage 0; rank j of
             stage s + 1 is fed by rank j % ranks(s) of stage s
    reduce   partial sums, both ways, between every two ranks of a stage
    result   rows wanted at the end: rank 0 of the last stage to the lead (none when that is the lead)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations, pairwise

from antfarm.types import Plan


class Purpose(IntEnum):
    FEED = 1
    REDUCE = 2
    RESULT = 3


@dataclass(frozen=True, order=True)
class Wire:
    """A connection from shard `source` to shard `target`; of a reduce wire, the lower index is the source."""

    purpose: Purpose
    source: int
    target: int

    @property
    def dialer(self) -> int:
        """The end that connects: always the higher index, so that no two wait in a circle."""
        return max(self.source, self.target)

    @property
    def listener(self) -> int:
        return min(self.source, self.target)

    def other(self, shard: int) -> int:
        return self.target if shard == self.source else self.source


def wires(plan: Plan) -> list[Wire]:
    """All wires of a plan, in a fixed order."""
    stages = [[part.shard for part in stage] for stage in plan.stages()]
    out = [Wire(Purpose.FEED, stages[0][0], mate) for mate in stages[0][1:]]
    for above, below in pairwise(stages):
        out += [Wire(Purpose.FEED, above[rank % len(above)], shard) for rank, shard in enumerate(below)]
    for stage in stages:
        out += [Wire(Purpose.REDUCE, low, high) for low, high in combinations(stage, 2)]
    if len(stages) > 1:
        out.append(Wire(Purpose.RESULT, stages[-1][0], stages[0][0]))
    return out


def wires_of(plan: Plan, shard: int) -> list[Wire]:
    """The wires that end at `shard`."""
    return [wire for wire in wires(plan) if shard in (wire.source, wire.target)]
