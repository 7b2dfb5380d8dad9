"""What `antc top` makes of two looks at the queen's counters."""

from __future__ import annotations

import pytest
from rich.console import Console

from antfarm.cli.figures import figures, median
from antfarm.cli.live import draw
from antfarm.messages import (
    ColonyStats,
    Histogram,
    LeadStats,
    ModelStats,
    ModelStatus,
    ShardStats,
    ShardView,
)

BOUNDS = (0.1, 0.2, 0.4)


def histogram(*counts: int) -> Histogram:
    return Histogram(BOUNDS, counts, 0.0)


NONE = histogram(0, 0, 0, 0)


def lead(rows: int = 0, steps: int = 0, *, waiting: int = 0, running: int = 0) -> LeadStats:
    return LeadStats(waiting, running, 4, 30, 120, 0, 0, 0, steps, rows)


def shard(replica: str, index: int, steps: int, of_lead: LeadStats | None = None) -> ShardStats:
    """Each step computes 20 ms, waits 5 ms, and moves 100 bytes out and 300 in."""
    return ShardStats(
        replica, 1, index, 0.02 * steps, 0.005 * steps, 100 * steps, 300 * steps, steps, 0, steps, of_lead
    )


def replica(name: str, state: str = "ready") -> ModelStatus:
    shards = tuple(ShardView(i, f"forager-{i}", "", "linked", 1.0, 2000, 1000) for i in range(2))
    return ModelStatus("m", "file", state, "tensor", name, 1, 512, 4, shards)


def look(time: float, tokens: int, first: Histogram, *shards: ShardStats, prompt: int = 0) -> ColonyStats:
    model = ModelStats("m", "ready", 0, {}, prompt, prompt // 2, tokens, first, NONE)
    gone = ModelStats("gone", "retired", 0, {}, 0, 0, 0, NONE, NONE)
    replicas = (replica("m-1"), replica("m-2", "unavailable"))
    return ColonyStats(time, 2, (model, gone), replicas, shards)


def test_rates_are_differences_over_the_queens_clock() -> None:
    before = look(10.0, 100, NONE, shard("m-1", 0, 50, lead(100, 50)), shard("m-1", 1, 50))
    now = look(
        14.0,
        180,
        histogram(0, 3, 0, 0),
        shard("m-1", 0, 90, lead(220, 90, waiting=2, running=4)),
        shard("m-1", 1, 90),
        prompt=40,
    )
    seen = figures(before, now, before)
    (model,) = seen.models
    assert (seen.seconds, seen.foragers, model.ready, model.replicas) == (4.0, 2, 1, 2)
    assert (model.tokens_per_second, model.prompt_tokens_per_second, model.cached) == (20, 10, 0.5)
    assert (model.running, model.queued, model.batch) == (4, 2, 3.0)
    assert model.first_token == pytest.approx(0.15) and model.next_token is None
    one = seen.shards[1]
    assert (one.shard, one.forager, one.steps_per_second) == (1, "forager-1", 10)
    assert (one.compute, one.wait) == (pytest.approx(0.02), pytest.approx(0.005))
    assert (one.sent_per_second, one.received_per_second, one.kv) == (1000, 3000, 0.25)
    lost = seen.shards[2]
    assert (lost.replica, lost.compute, lost.kv, lost.resident) == ("m-2", None, None, 1000)


def test_a_replica_that_became_ready_in_between_counts_from_nothing() -> None:
    now = look(2.0, 0, NONE, shard("m-1", 0, 10, lead(20, 10)))
    seen = figures(look(0.0, 0, NONE), now, look(0.0, 0, NONE))
    assert seen.shards[0].steps_per_second == 5
    assert seen.models[0].batch == 2


@pytest.mark.parametrize(
    ("now", "before", "value"),
    [
        (NONE, None, None),
        (histogram(1, 0, 0, 0), None, 0.05),
        (histogram(0, 4, 0, 0), None, 0.15),
        (histogram(1, 1, 2, 0), None, 0.2),
        (histogram(0, 0, 0, 5), None, 0.4),  # beyond all bounds: at least the last
        (histogram(9, 0, 2, 0), histogram(9, 0, 0, 0), 0.3),  # only what came since
        (histogram(9, 0, 0, 0), histogram(9, 0, 0, 0), 0.05),  # nothing came: what there is
    ],
)
def test_medians(now: Histogram, before: Histogram | None, value: float | None) -> None:
    assert median(now, before) == (None if value is None else pytest.approx(value))


def test_it_is_drawn_with_dashes_where_nothing_is_known() -> None:
    console = Console(width=150)
    with console.capture() as captured:
        console.print(draw(figures(look(0.0, 0, NONE), look(1.0, 5, NONE), look(0.0, 0, NONE))))
    lines = [line.split() for line in captured.get().splitlines()]
    assert ["m", "ready", "1/2", "0", "0", "5.0", "0.0", "-", "-", "-", "-"] in lines
    assert sum(line[:1] == ["m-2"] for line in lines) == 2
