"""What the queen counts, and the page that Prometheus reads."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from antfarm.errors import Reason, StateError
from antfarm.messages import (
    ColonyStats,
    Failure,
    LeadStats,
    ModelStatus,
    ShardStats,
    ShardView,
    TaskAccepted,
    TaskEvent,
    TaskFinished,
    TaskTokens,
    Timings,
)
from antfarm.queen.metrics import Metrics
from antfarm.queen.stats import KEPT, Stats

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
FULL = StateError(Reason.QUEUE_FULL, "too many")


class Clock:
    """Seconds that the played events take."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def answer(pieces: int, *, cached: int = 0, failure: Failure | None = None) -> list[TaskEvent]:
    """Two tokens a piece."""
    tokens = [TaskTokens("t", 2 * i, 2, "ab") for i in range(pieces)]
    timings = Timings(0, 0, 0, 9, 2 * pieces, cached_tokens=cached)
    finish = TaskFinished("t", 2 * pieces, "error" if failure else "stop", timings, failure)
    return [TaskAccepted("t", 9), *tokens, finish]


class Player:
    """Runs written tasks past `stats`; each event takes `pace` seconds."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.stats = Stats(self.clock)

    async def events(
        self, events: Iterable[TaskEvent | Exception], pace: float
    ) -> AsyncGenerator[TaskEvent, None]:
        for event in events:
            self.clock.now += pace
            if isinstance(event, Exception):
                raise event
            yield event

    async def play(self, events: Iterable[TaskEvent | Exception], pace: float = 0.25, read: int = 99) -> None:
        async with aclosing(self.stats.observed("m", self.events(events, pace))) as observed:
            async for _ in observed:
                read -= 1
                if not read:
                    break

    def report(self, *replicas: ModelStatus) -> ColonyStats:
        return self.stats.report(2, {"m": "ready"}, replicas)


@pytest.fixture
def player() -> Player:
    return Player()


def status(replica: str = "m-1", epoch: int = 1, state: str = "ready") -> ModelStatus:
    shards = tuple(ShardView(i, f"forager-{i}", "", "linked", 1.0, 2000 + i, 1000 + i) for i in range(2))
    return ModelStatus("m", "file", state, "tensor", replica, epoch, 512, 4, shards)


def shard(replica: str = "m-1", epoch: int = 1, index: int = 0, steps: int = 5) -> ShardStats:
    """No two of its figures are the same."""
    lead = LeadStats(3, 2, 4, 100, 400, 91, 10, 50, 20, 61) if index == 0 else None
    more = 1000 * index
    return ShardStats(
        replica,
        epoch,
        index,
        1.5 + more,
        0.5 + more,
        101 + more,
        202 + more,
        steps + more,
        90 + more,
        60 + more,
        lead,
    )


# ---- counting


def test_a_replica_that_ended_holds_no_slots(player: Player) -> None:
    player.stats.hear(shard())
    assert [one.steps for one in player.report(status()).shards] == [5]
    assert not player.report(status(state="unavailable")).shards


async def test_an_answer_is_counted_as_it_passes(player: Player) -> None:
    await player.play(answer(3, cached=4))
    (model,) = player.report().models
    assert (model.outcomes, model.underway) == ({"stop": 1}, 0)
    assert (model.prompt_tokens, model.cached_tokens, model.tokens) == (9, 4, 6)
    assert (sum(model.first_token.counts), model.first_token.sum) == (1, 0.5)
    assert (sum(model.next_token.counts), model.next_token.sum) == (1, pytest.approx(0.5 / 4))
    where = model.first_token.counts.index(1)
    assert model.first_token.bounds[where] == 0.5, "a bound belongs to its bucket"


@pytest.mark.parametrize(
    ("events", "read", "outcome"),
    [
        ([FULL], 99, "queue-full"),
        (answer(1, failure=Failure(Reason.SHARD_FAILED, "gone")), 99, "shard-failed"),
        (answer(5), 2, "cancelled"),
        (answer(2), 4, "stop"),  # a client that leaves after the last event had all of it
    ],
)
async def test_how_a_task_ended(
    player: Player, events: list[TaskEvent | Exception], read: int, outcome: str
) -> None:
    try:
        await player.play(events, read=read)
    except StateError as error:
        assert error is FULL
    (model,) = player.report().models
    assert (model.outcomes, model.underway) == ({outcome: 1}, 0)


async def test_a_mistake_of_ours_is_counted_as_one(player: Player) -> None:
    with pytest.raises(ZeroDivisionError):
        await player.play([ZeroDivisionError()])
    assert player.report().models[0].outcomes == {"internal": 1}


async def test_an_answer_of_one_piece_has_no_time_per_token(player: Player) -> None:
    await player.play(answer(1))
    assert sum(player.report().models[0].next_token.counts) == 0


def test_shards_of_replicas_that_are_shown_newest_epoch_first(player: Player) -> None:
    for told in (shard(epoch=1), shard(epoch=2, steps=1), shard(epoch=1, steps=9), shard("gone-1")):
        player.stats.hear(told)
    assert player.report(status(epoch=2)).shards == (shard(epoch=2, steps=1),)
    assert player.report(status(epoch=1)).shards == ()


async def test_a_model_that_was_unloaded_keeps_its_counts(player: Player) -> None:
    await player.play(answer(1))
    report = player.stats.report(0, {}, ())
    assert [(m.model, m.state, m.tokens) for m in report.models] == [("m", "retired", 2)]


async def test_what_is_long_gone_is_forgotten(player: Player) -> None:
    player.stats.hear(shard())
    player.stats.hear(shard("gone-1"))
    player.report(status())
    assert len(player.stats._shards) == 1
    for number in range(KEPT + 3):
        async with aclosing(player.stats.observed(f"m{number}", player.events(answer(1), 0.1))) as events:
            assert [event async for event in events]
    report = player.stats.report(0, {"m0": "ready"}, ())
    assert [model.model for model in report.models] == ["m0", *(f"m{i}" for i in range(3, KEPT + 3))]


# ---- the page


def page(stats: ColonyStats) -> dict[str, Metric]:
    body, content_type = Metrics(lambda: stats).page("text/plain")
    assert content_type.startswith("text/plain")
    return {family.name: family for family in parse(body.decode())}


def names(families: Iterable[Metric]) -> set[str]:
    return {f"{one.name}_total" if one.type == "counter" else one.name for one in families}


def test_every_metric_is_documented_and_the_other_way_round(player: Player) -> None:
    documented = re.findall(r"^\| `(antfarm_\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert set(documented) == names(page(player.report()).values())
    assert len(documented) == len(set(documented))


async def test_what_the_page_says(player: Player) -> None:
    await player.play(answer(3, cached=4))
    player.stats.hear(shard())
    player.stats.hear(shard(index=1))
    async with aclosing(player.stats.observed("m", player.events(answer(1), 0.25))) as begun:
        await anext(begun)
        families = page(player.report(status(), status("m-2", state="unavailable")))

    def values(name: str) -> dict[tuple[str, ...], float]:
        """Values by their labels, in the order of the labels' names."""
        samples = families[name].samples
        return {tuple(s.labels[label] for label in sorted(s.labels)): s.value for s in samples}

    assert values("antfarm_requests") == {("m", "stop"): 1}
    assert values("antfarm_foragers") == {(): 2}
    assert values("antfarm_models")[("ready",)] == 1
    assert values("antfarm_replica_ready") == {("m", "m-1"): 1, ("m", "m-2"): 0}
    for name, value in {
        "requests_underway": 1,
        "prompt_tokens": 18,
        "cached_prompt_tokens": 4,
        "answer_tokens": 6,
    }.items():
        assert values(f"antfarm_{name}") == {("m",): value}, name
    for name, value in {
        "queue_length": 3,
        "slots_used": 2,
        "slots": 4,
        "kv_rows": 100,
        "kv_rows_capacity": 400,
        "decode_steps": 20,
        "decode_rows": 61,
    }.items():
        assert values(f"antfarm_{name}") == {("m", "m-1"): value}, name
    first, second = ("forager-0", "m", "m-1", "0"), ("forager-1", "m", "m-1", "1")
    for name, figure in {
        "compute_seconds": 1.5,
        "wait_seconds": 0.5,
        "sent_bytes": 101,
        "received_bytes": 202,
        "steps": 5,
        "prompt_rows": 90,
        "decode_rows": 60,
    }.items():
        assert values(f"antfarm_shard_{name}") == {first: figure, second: 1000 + figure}, name
    assert values("antfarm_shard_resident_bytes")[("forager-1", "m", "m-2", "1")] == 1001
    assert values("antfarm_shard_planned_bytes")[("forager-1", "m", "m-2", "1")] == 2001
    buckets = [
        sample.value
        for sample in families["antfarm_time_to_first_token_seconds"].samples
        if sample.name.endswith("_bucket")
    ]
    assert buckets == sorted(buckets) and (buckets[0], buckets[-1]) == (0, 1)


async def test_openmetrics_is_given_to_whom_asks_for_it(player: Player) -> None:
    await player.play(answer(2))
    player.stats.hear(shard())
    metrics = Metrics(lambda: player.report(status()))
    body, content_type = metrics.page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert names(parse_openmetrics(body.decode())) == names(page(player.report(status())).values())
