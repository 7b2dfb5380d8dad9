import pytest
from support.meshes import plan_of

from antfarm.link.topology import Purpose, Wire, wires, wires_of

FEED, REDUCE, RESULT = Purpose.FEED, Purpose.REDUCE, Purpose.RESULT


@pytest.mark.parametrize(
    ("ranks", "feed", "reduce", "result"),
    [
        ((1,), [], [], []),
        ((2,), [(0, 1)], [(0, 1)], []),
        ((3,), [(0, 1), (0, 2)], [(0, 1), (0, 2), (1, 2)], []),
        ((1, 1), [(0, 1)], [], [(1, 0)]),
        ((1, 1, 1), [(0, 1), (1, 2)], [], [(2, 0)]),
        ((2, 2), [(0, 1), (0, 2), (1, 3)], [(0, 1), (2, 3)], [(2, 0)]),
        ((3, 1), [(0, 1), (0, 2), (0, 3)], [(0, 1), (0, 2), (1, 2)], [(3, 0)]),
        ((1, 3), [(0, 1), (0, 2), (0, 3)], [(1, 2), (1, 3), (2, 3)], [(1, 0)]),
    ],
)
def test_wires(
    ranks: tuple[int, ...],
    feed: list[tuple[int, int]],
    reduce: list[tuple[int, int]],
    result: list[tuple[int, int]],
) -> None:
    expected = [Wire(FEED, *ends) for ends in feed]
    expected += [Wire(REDUCE, *ends) for ends in reduce]
    expected += [Wire(RESULT, *ends) for ends in result]
    assert wires(plan_of(*ranks)) == expected


@pytest.mark.parametrize("ranks", [(1,), (4,), (1, 1, 1, 1), (2, 3, 1), (3, 2), (1, 4, 2)])
def test_every_shard_but_the_lead_is_fed_once_and_every_wire_has_two_ends(ranks: tuple[int, ...]) -> None:
    plan = plan_of(*ranks)
    shards = range(len(plan.parts))
    fed = [wire.target for wire in wires(plan) if wire.purpose is FEED]
    assert sorted(fed) == list(shards)[1:]
    ends = [wire for shard in shards for wire in wires_of(plan, shard)]
    assert sorted(ends) == sorted(2 * wires(plan))
    assert all(wire.dialer > wire.listener for wire in wires(plan))
