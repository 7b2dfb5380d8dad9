"""Several models and several replicas on real foragers: who answers, what is lost, what is counted."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from support.models import Models
from support.stopping import stop
from support.world import World

from antfarm.errors import AntfarmError, Reason
from antfarm.messages import LoadModel, TaskEvent, TaskFinished
from antfarm.queen.tasks import TaskRequest, _Task
from antfarm.types import RunOptions, Sampling

SMALL = RunOptions(context=256, slots=1)
SHORT = Sampling(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=0)
LONG = TaskRequest("tiny", Sampling(temperature=0.0, max_tokens=200, ignore_eos=True), tokens=(1, 2, 3))
ROOMY = RunOptions(context=32768, slots=1, queue=1)
ENDLESS = TaskRequest("tiny", Sampling(temperature=0.0, ignore_eos=True), tokens=(1, 2, 3))  # fills ROOMY


def shards(world: World) -> dict[str, int]:
    """How many shard processes each forager has."""
    return {name: len(forager.shards()) for name, forager in world.foragers.items()}


async def test_several_models_share_foragers_and_unloading_one_makes_room(
    world: World, tiny: Path, models: Models
) -> None:
    await asyncio.gather(*(world.forager(name, mib=140) for name in "ab"))
    await world.load(tiny, 2, options=SMALL)
    await world.load(models.path("tiny-qwen2"), 2, "other", options=SMALL)
    assert shards(world) == {"a": 2, "b": 2}
    answers = await asyncio.gather(*(world.ask(SHORT, model) for model in ("tiny", "other") * 2))
    assert answers[:2] == answers[2:] and all(len(answer) == 3 for answer in answers)

    with pytest.raises(AntfarmError) as caught:
        await world.load(models.path("tiny-qwen3"), 2, "third", options=SMALL)
    assert caught.value.reason is Reason.NO_CAPACITY
    await world.queen.unload("other")
    assert shards(world) == {"a": 1, "b": 1}
    await world.load(models.path("tiny-qwen3"), 2, "third", options=SMALL)
    assert len(await world.ask(SHORT, "third")) == 3
    assert await world.ask(SHORT) == answers[0]
    with pytest.raises(AntfarmError) as caught:
        await world.ask(SHORT, "other")
    assert caught.value.reason is Reason.MODEL_RETIRED


async def started(world: World, stack: AsyncExitStack, asked: TaskRequest) -> AsyncIterator[TaskEvent]:
    """An answer, begun."""
    events = await stack.enter_async_context(aclosing(world.queen.run(asked)))
    await anext(events)
    return events


async def test_one_replica_is_killed_and_the_other_serves(world: World, tiny: Path) -> None:
    await asyncio.gather(*(world.forager(name) for name in "abcd"))
    await world.load(tiny, 2, replicas=2, options=SMALL)
    first, second = world.queen.replicas()
    used = [shard.forager for replica in (first, second) for shard in replica.shards]
    assert (first.replica, second.replica, len(set(used))) == ("tiny-1", "tiny-2", 4)

    victim = world.foragers[first.shards[1].forager].shards()[0].pid
    stop(victim)  # so that no answer of its replica ends before it does
    async with AsyncExitStack() as stack:
        lost, kept = [await started(world, stack, LONG) for _ in range(2)]
        assert world.queen.tasks.underway() == {("tiny-1", first.epoch): 1, ("tiny-2", second.epoch): 1}
        os.kill(victim, signal.SIGKILL)
        (*_, failed), (*_, finished) = [[e async for e in events] for events in (lost, kept)]
    assert isinstance(failed, TaskFinished) and failed.failure
    assert failed.failure.reason == Reason.SHARD_FAILED
    assert isinstance(finished, TaskFinished) and (finished.finish, finished.index) == ("length", 200)

    assert len(await world.ask(SHORT)) == 3
    assert world.queen.status()[0].state == "ready"
    assert [replica.state for replica in world.queen.replicas()] == ["unavailable", "ready"]
    (loss,) = [event for event in await world.ops() if event.kind == "shard-missing"]
    assert f"shard 1 on {first.shards[1].forager}" in loss.text and "1 of 2 replicas serve" in loss.text
    await world.until(lambda: sum(shards(world).values()) == 2)

    page = await metrics(world)
    assert page["antfarm_replica_ready", "tiny-1"] == 0
    assert page["antfarm_replica_ready", "tiny-2"] == 1
    assert page["antfarm_requests_total", "shard-failed"] == 1
    assert page["antfarm_requests_total", "length"] == 2

    await world.queen.load(LoadModel("tiny", reshard=True, split=2))
    await world.until(lambda: [r.state for r in world.queen.replicas()] == ["ready", "ready"])
    await world.until(lambda: sorted(shards(world).values()) == [1, 1, 1, 1])
    assert {replica.epoch for replica in world.queen.replicas()} == {2, 3}
    await world.queen.unload("tiny")
    assert sum(shards(world).values()) == 0


async def test_a_lead_that_hangs_is_lost_and_the_other_replica_serves(
    world: World, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.gather(*(world.forager(name) for name in "ab"))
    await world.load(tiny, 1, replicas=2, options=ROOMY)
    monkeypatch.setattr("antfarm.queen.tasks.SILENCE_S", 2.0)
    first, _ = world.queen.replicas()
    lead = world.foragers[first.shards[0].forager].shards()[0].pid
    async with AsyncExitStack() as stack:
        events = await started(world, stack, ENDLESS)
        os.kill(lead, signal.SIGSTOP)
        (*_, failed) = [event async for event in events]
    assert isinstance(failed, TaskFinished) and failed.failure
    assert failed.failure.reason == Reason.SHARD_FAILED
    assert [replica.state for replica in world.queen.replicas()] == ["unavailable", "ready"]
    assert len(await world.ask(SHORT)) == 3
    (loss,) = [event for event in await world.ops() if event.kind == "shard-missing"]
    assert "has said nothing for 2 s" in loss.text and "1 of 2 replicas serve" in loss.text
    await world.until(lambda: sum(shards(world).values()) == 1)
    await world.until(lambda: not psutil.pid_exists(lead))  # killed after a time, as it hears no SIGTERM


async def test_a_lead_whose_last_word_was_lost_goes_on(
    world: World, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.forager("a")
    await world.load(tiny, 1, options=SMALL)
    receive = _Task.receive
    monkeypatch.setattr("antfarm.queen.tasks.SILENCE_S", 1.0)
    monkeypatch.setattr(
        _Task,
        "receive",
        lambda task, event: None if getattr(event, "finish", "") == "length" else receive(task, event),
    )
    (*_, failed) = [event async for event in world.queen.run(TaskRequest("tiny", SHORT, tokens=(1, 2, 3)))]
    assert isinstance(failed, TaskFinished) and failed.failure
    assert (failed.failure.reason, failed.index) == (Reason.TIMEOUT, 3)
    monkeypatch.undo()
    assert len(await world.ask(SHORT)) == 3
    assert "shard-missing" not in [event.kind for event in await world.ops()]


async def metrics(world: World) -> dict[tuple[str, str], float]:
    """The page of a served API: values by name and by the label that tells rows of this test apart."""
    async with world.http() as http:
        response = await http.get("/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
    samples = [sample for family in parse(response.text) for sample in family.samples]
    told = ("outcome", "shard", "replica", "state", "model")
    return {(s.name, next((s.labels[k] for k in told if k in s.labels), "")): s.value for s in samples}


async def test_what_shards_and_tasks_did_is_on_the_page(world: World, tiny: Path) -> None:
    await asyncio.gather(*(world.forager(name) for name in "ab"))
    await world.load(tiny, 2, options=SMALL)
    assert len(await world.ask(SHORT)) == len(await world.ask(SHORT)) == 3

    def told() -> bool:
        """Each shard has reported all rows: three that proved the replica, the two prompts' that were read,
        and the answers' that were passed on. And the lead that it is idle again."""
        shards = world.queen.stats().shards
        idle = any(shard.lead and shard.lead.running == 0 for shard in shards)
        return idle and [s.prompt_rows + s.decode_rows for s in shards] == [3 + 4 + 1 + 2 * 2] * 2

    await world.until(told)
    await world.until(lambda: all(s.resident for r in world.queen.stats().replicas for s in r.shards))
    page = await metrics(world)
    assert page["antfarm_requests_total", "length"] == 2
    assert page["antfarm_prompt_tokens_total", "tiny"] == 8
    assert page["antfarm_cached_prompt_tokens_total", "tiny"] == 3, "the second prompt but its last token"
    assert page["antfarm_answer_tokens_total", "tiny"] == 6
    assert page["antfarm_time_to_first_token_seconds_count", "tiny"] == 2
    assert page["antfarm_time_per_output_token_seconds_count", "tiny"] == 2
    assert page["antfarm_foragers", ""] == 2 and page["antfarm_models", "ready"] == 1
    assert page["antfarm_requests_underway", "tiny"] == page["antfarm_slots_used", "tiny-1"] == 0
    assert page["antfarm_slots", "tiny-1"] == 1
    assert page["antfarm_kv_rows_capacity", "tiny-1"] == 256
    for index in ("0", "1"):
        assert page["antfarm_shard_compute_seconds_total", index] > 0
        assert page["antfarm_shard_sent_bytes_total", index] > 0
        assert page["antfarm_shard_received_bytes_total", index] > 0
        assert page["antfarm_shard_decode_rows_total", index] >= 4
        assert 0 < page["antfarm_shard_resident_bytes", index] < 1 << 30


async def test_more_than_all_queues_take_is_refused(world: World, tiny: Path) -> None:
    await asyncio.gather(*(world.forager(name) for name in "ab"))
    await world.load(tiny, 1, replicas=2, options=ROOMY)
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await started(world, stack, ENDLESS)
        with pytest.raises(AntfarmError) as caught:
            await world.ask(SHORT)
        assert caught.value.reason is Reason.QUEUE_FULL

    async def answered() -> int:
        while True:  # the leads hear of the clients' leaving a moment later
            try:
                return len(await world.ask(SHORT))
            except AntfarmError as error:
                assert error.reason is Reason.QUEUE_FULL
                await asyncio.sleep(0.05)

    assert await asyncio.wait_for(answered(), 20) == 3


async def test_unloading_while_replicas_load_leaves_nothing(world: World, tiny: Path) -> None:
    await asyncio.gather(*(world.forager(name) for name in "ab"))
    await world.queen.load(LoadModel(str(tiny), name="tiny", split=1, replicas=2))
    await world.until(lambda: any(shards(world).values()))
    await world.queen.unload("tiny")
    looks = 0

    def quiet() -> bool:
        """For half a second: a shard that was on its way starts yet, and is ended as nobody asks for it."""
        nonlocal looks
        looks = 0 if any(shards(world).values()) else looks + 1
        return looks >= 25

    await world.until(quiet)
    assert world.queen.status() == []


async def test_of_three_shards_the_killed_one_is_named(world: World, tiny: Path) -> None:
    await asyncio.gather(*(world.forager(name) for name in "abc"))
    status = await world.load(tiny, 3, mode="pipeline", options=SMALL)
    for _ in range(2):
        await world.ask(SHORT)
    victim = status.shards[2].forager
    (process,) = world.foragers[victim].shards()
    process.kill()
    assert await asyncio.to_thread(psutil.wait_procs, [process], 30) == ([process], [])
    await world.until(lambda: world.queen.status()[0].state == "unavailable")

    def named() -> bool:
        with pytest.raises(AntfarmError) as caught:
            world.queen.tasks._route(LONG)
        return f"shard 2 on {victim}" in caught.value.message

    await world.until(named)
