"""Foragers that run on one machine: whose memory is whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antfarm.messages import ForagerFacts


def share(one: ForagerFacts, foragers: Sequence[ForagerFacts], used: Mapping[str, int]) -> int:
    """Bytes that a forager may fill, with what it has `used` already.

    One that was not told how many found what was free on its machine, as others there may have done, too:
    together they fill no more than the most that any of them found.
    """
    if one.memory_told:
        return one.memory
    there = [other for other in foragers if other.machine == one.machine]
    pool = max(other.memory for other in there)
    return min(one.memory, _level(pool, sorted(used[other.id] for other in there)))


def _level(pool: int, used: Sequence[int]) -> int:
    """How far those that have `used` so much, ascending, can fill up evenly: who is above it gets no more."""
    for count in range(len(used), 1, -1):
        level = (pool - sum(used[count:])) // count
        if level >= used[count - 1]:
            return level
    return pool - sum(used[1:])
