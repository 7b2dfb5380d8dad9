"""A split plan for given hosts. Pure arithmetic on a model's header.

How much each shard gets:

* Ranks of a stage meet after every half layer, so each half takes as long as its slowest rank. KV-head
  groups and feed-forward columns are therefore each shared out by speed, independently: more columns can't
  make up for fewer heads. The lead's head comes after the last layer, when the other ranks idle anyway:
  a smaller share of the layers would not help it, so equal shares stay the fastest for equal hosts.
* Stages of a pipeline work at once on different steps, so the slowest sets the pace. They are cut at any half
  layer, which evens them out better than whole layers do. A half is counted by the bytes that a token
  makes it read, and the lead's head counts like one; the embedding, of which a token reads one row, does not.
* What does not fit a host's memory moves to the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import msgspec

from antfarm.split.layout import Layout, Units
from antfarm.split.memory import Footprint
from antfarm.split.request import HostShare
from antfarm.split.shares import divide, furthest, ranges, spans
from antfarm.types import Part, Plan, RunOptions, Span


class Planner:
    """Plans for one model and one set of options."""

    def __init__(self, footprint: Footprint, options: RunOptions) -> None:
        self._footprint = footprint
        self._facts = footprint.facts
        self._options = options
        self._units = Units.of(self._facts)
        self._head_units = -(-self._facts.kv_heads // self._units.kv_heads)
        self._column_units = -(-self._facts.feed_forward // self._units.feed_forward)

    def plan(self, layout: Layout, hosts: Sequence[HostShare]) -> Plan | None:
        """A plan of that form that fits these hosts (in order of shards), or None."""
        cuts = [0, *accumulate(layout.ranks)]
        stages = [range(lo, hi) for lo, hi in pairwise(cuts)]
        halves = self._halves(stages, hosts)
        if halves is None:
            return None
        parts: list[Part] = []
        for stage, (shards, span) in enumerate(zip(stages, halves, strict=True)):
            ranks = self._ranks(stage, shards, span, hosts)
            if ranks is None:
                return None
            parts += ranks
        memory = tuple(self._footprint.memory(part, self._options) for part in parts)
        if any(need.total > host.memory for need, host in zip(memory, hosts, strict=True)):
            return None
        return Plan(layout.mode, tuple(parts), memory)

    def _halves(self, stages: list[range], hosts: Sequence[HostShare]) -> list[Span] | None:
        """Each stage's half layers."""
        ends: dict[tuple[bool, int, int], list[int]] = {}  # of stages that are alike

        def ends_of(stage: int, shards: range) -> list[int]:
            memory = sum(hosts[shard].memory for shard in shards)
            alike = stage == 0, len(shards), memory
            if alike not in ends:
                ends[alike] = furthest(2 * self._facts.layers, self._fits(stage, shards, memory))
            return ends[alike]

        weights = [sum(hosts[shard].weight for shard in shards) for shards in stages]
        # The head runs on the lead alone; a stage's time is its bytes over the weight of all its ranks.
        head = self._footprint.head * weights[0] / hosts[0].weight
        extra = [head] + [0.0] * (len(stages) - 1)
        reach = [ends_of(*each) for each in enumerate(stages)]
        # Two halves at least, so that every stage holds some layer's attention, and a KV cache.
        return ranges(self._footprint.half_bytes, extra, weights, reach, least=2)

    def _fits(self, stage: int, shards: range, memory: int) -> Callable[[Span], bool]:
        """Whether the stage's hosts together have the memory for some halves."""
        even = self._evenly(len(shards))

        def fits(span: Span) -> bool:
            parts = self._parts(stage, shards, span, *even)
            return sum(self._footprint.memory(part, self._options).total for part in parts) <= memory

        return fits

    def _evenly(self, ranks: int) -> tuple[list[int], list[int]]:
        """Units of heads and of columns for each rank, memory and speed aside."""
        ones = [1.0] * ranks
        heads, columns = divide(self._head_units, ones), divide(self._column_units, ones)
        assert heads is not None and columns is not None, "the layout was checked against the units"
        return heads, columns

    def _ranks(
        self, stage: int, shards: range, halves: Span, hosts: Sequence[HostShare]
    ) -> list[Part] | None:
        """The stage's parts: heads by speed, then columns by speed within what memory is left.

        A host that has no room for one unit of columns gives up heads, until all fit.
        """
        weights = [hosts[shard].weight for shard in shards]
        most_heads = [self._head_units] * len(shards)
        while (heads := divide(self._head_units, weights, most_heads)) is not None:
            bare = self._parts(stage, shards, halves, heads, [0] * len(shards))
            limits = [self._most_columns(part, hosts[part.shard].memory) for part in bare]
            columns = divide(self._column_units, weights, limits)
            if columns is not None:
                return self._parts(stage, shards, halves, heads, columns)
            tight = min(range(len(shards)), key=lambda rank: limits[rank])
            if limits[tight] >= 1:
                return None
            most_heads[tight] = heads[tight] - 1
        return None

    def _most_columns(self, part: Part, memory: int) -> int:
        """The most units of columns with which this part fits; -1 when it does not fit with none."""
        unit = self._units.feed_forward

        def over(units: int) -> bool:
            columns = Span(0, min(units * unit, self._facts.feed_forward))
            whole = msgspec.structs.replace(part, feed_forward=columns)
            return self._footprint.memory(whole, self._options).total > memory

        return bisect_left(range(self._column_units + 1), True, key=over) - 1

    def _parts(
        self, stage: int, shards: range, halves: Span, heads: Sequence[int], columns: Sequence[int]
    ) -> list[Part]:
        """The stage's parts from each rank's units of heads and columns."""
        cut_heads = spans(heads, self._units.kv_heads, self._facts.kv_heads)
        cut_columns = spans(columns, self._units.feed_forward, self._facts.feed_forward)
        return [
            Part(shard, stage, rank, len(shards), halves, cut_heads[rank], cut_columns[rank])
            for rank, shard in enumerate(shards)
        ]
