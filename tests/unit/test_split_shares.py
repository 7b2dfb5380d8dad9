"""Division of whole units against brute force."""

from functools import partial
from itertools import combinations, pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from antfarm.split.shares import divide, furthest, ranges, spans
from antfarm.types import Span

weights = st.lists(st.floats(0.1, 10), min_size=1, max_size=3)


@given(st.integers(0, 9), weights, st.data())
def test_division_is_the_fastest_within_the_limits(
    units: int, speeds: list[float], data: st.DataObject
) -> None:
    limits = [data.draw(st.integers(0, 9)) for _ in speeds]
    given_units = divide(units, speeds, limits)
    possible = [
        each
        for each in product(range(1, units + 1), repeat=len(speeds))
        if sum(each) == units and all(n <= limit for n, limit in zip(each, limits, strict=True))
    ]
    if given_units is None:
        assert not possible
        return
    assert tuple(given_units) in possible
    slowest = [max(n / speed for n, speed in zip(each, speeds, strict=True)) for each in possible]
    assert max(n / speed for n, speed in zip(given_units, speeds, strict=True)) <= min(slowest) * (1 + 1e-9)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=7),
    weights,
    st.integers(0, 9),
    st.integers(1, 2),
    st.data(),
)
def test_ranges_are_the_fastest_that_fit(
    costs: list[int], speeds: list[float], head: int, least: int, data: st.DataObject
) -> None:
    room = [data.draw(st.integers(1, 40)) for _ in speeds]
    extra = [float(head)] + [0.0] * (len(speeds) - 1)

    def fits(i: int, span: Span) -> bool:
        return sum(costs[span.lo : span.hi]) <= room[i]

    def slowest(cuts: list[Span]) -> float:
        return max((sum(costs[s.lo : s.hi]) + extra[i]) / speeds[i] for i, s in enumerate(cuts))

    ends = [furthest(len(costs), partial(fits, i)) for i in range(len(speeds))]
    found = ranges(costs, extra, speeds, ends, least)
    possible = []
    for inner in combinations(range(1, len(costs)), len(speeds) - 1):
        cuts = [Span(lo, hi) for lo, hi in pairwise([0, *inner, len(costs)])]
        if all(len(span) >= least and fits(i, span) for i, span in enumerate(cuts)):
            possible.append(cuts)
    if found is None:
        assert not possible
        return
    assert found in possible
    assert slowest(found) <= min(slowest(cuts) for cuts in possible) * (1 + 1e-9)


def test_the_last_unit_may_be_short() -> None:
    assert spans([2, 1], 32, 80) == [Span(0, 64), Span(64, 80)]
