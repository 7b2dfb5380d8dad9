"""Dividing whole units among hosts of unequal speed and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from antfarm.types import Span


def divide(units: int, weights: Sequence[float], limits: Sequence[int] | None = None) -> list[int] | None:
    """Whole units for each weight, at least one each, so that the slowest is as fast as can be.

    Unit after unit goes to the one that would be done first with it (ties to the first), which minimizes
    the largest `units[i] / weights[i]`; nobody gets more than its limit. None when they do not all fit.
    """
    limits = [units] * len(weights) if limits is None else limits
    if units < len(weights) or sum(limits) < units or min(limits) < 1:
        return None
    given = [1] * len(weights)
    for _ in range(units - len(weights)):
        free = [i for i, limit in enumerate(limits) if given[i] < limit]
        given[min(free, key=lambda i: (given[i] + 1) / weights[i])] += 1
    return given


def spans(counts: Sequence[int], unit: int, end: int) -> list[Span]:
    """Counts of units of `unit` values as adjoining spans of `[0, end)`; the last unit may be a short one."""
    cuts = [0, *accumulate(counts)]
    return [Span(lo * unit, min(hi * unit, end)) for lo, hi in pairwise(cuts)]


def ranges(
    costs: Sequence[float],
    extra: Sequence[float],
    weights: Sequence[float],
    ends: Sequence[Sequence[int]],
    least: int = 1,
) -> list[Span] | None:
    """Cut items of the given costs into one range of at least `least` items per weight, in order.

    Range i takes `(sum of its costs + extra[i]) / weights[i]`; the longest is made as short as can be, then
    the ranges are made even. From `start` on, range i may go as far as `ends[i][start]` (as `furthest` has
    it). None when there is no such cut.
    A dynamic program over (ranges, items): O(ranges x items^2).
    """
    items, parts = len(costs), len(weights)
    if not _reaches(items, ends):
        return None
    sums = [0.0, *accumulate(costs)]
    best: list[dict[int, tuple[float, float, int]]] = [
        {0: (0.0, 0.0, 0)}
    ]  # end -> (longest, unevenness, start)
    for i in range(parts):
        row: dict[int, tuple[float, float, int]] = {}
        last = i == parts - 1
        for end in [items] if last else range((i + 1) * least, items - (parts - i - 1) * least + 1):
            found = [
                (max(longest, time), uneven + time * time * weights[i], start)
                for start, (longest, uneven, _) in best[i].items()
                if start + least <= end <= ends[i][start]
                for time in [(sums[end] - sums[start] + extra[i]) / weights[i]]
            ]
            if found:
                row[end] = min(found)
        best.append(row)
    if items not in best[parts]:
        return None
    out: list[Span] = []
    end = items
    for row in reversed(best[1:]):
        start = row[end][2]
        out.append(Span(start, end))
        end = start
    return out[::-1]


def furthest(items: int, fits: Callable[[Span], bool]) -> list[int]:
    """For each start, the end of the longest range that fits; what is within one that fits, fits too."""
    out, end = [], 0
    for start in range(items):
        end = max(end, start)
        while end < items and fits(Span(start, end + 1)):
            end += 1
        out.append(end)
    return out


def _reaches(items: int, ends: Sequence[Sequence[int]]) -> bool:
    """Whether ranges as long as can be cover all items: most splits that do not fit end here."""
    at = 0
    for each in ends:
        at = each[at] if at < items else items
    return at == items
