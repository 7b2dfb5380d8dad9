"""A whole colony: real bus, real foragers, real shard processes, a tiny random model."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import aclosing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
from support.stopping import stop, stopped
from support.world import GREEDY, World

from antfarm.bus import Bus, Registry
from antfarm.bus.registry import EXPIRY_S
from antfarm.bus.subjects import PULL_EVENTS, QUEEN_LOAD, QUEEN_MODELS, QUEEN_UNLOAD
from antfarm.config import HEARTBEAT_S, LOST_AFTER_S, Home
from antfarm.errors import AntfarmError, Reason
from antfarm.forager import Forager, ForagerSettings
from antfarm.messages import (
    Done,
    ListModels,
    LoadModel,
    TaskFinished,
    TaskTokens,
    UnloadModel,
)
from antfarm.queen.service import Queen
from antfarm.queen.settings import QueenSettings
from antfarm.queen.tasks import TaskRequest
from antfarm.secret import Secret
from antfarm.types import Sampling


async def test_a_split_model_answers_alike_and_leaves_nothing(world: World, tiny: Path) -> None:
    await asyncio.gather(world.forager("a"), world.forager("b"))
    logprobs = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
    status = await world.load(tiny, 2)
    assert (status.state, status.mode, status.epoch) == ("ready", "tensor", 1)
    assert {shard.forager for shard in status.shards} == {"a", "b"}
    split = await world.ask(logprobs)
    assert len(split) == 12
    assert await world.ask(logprobs) == split

    changed = await world.load(tiny, 2, mode="pipeline", reshard=True)
    assert (changed.mode, changed.epoch) == ("pipeline", 2)
    assert await world.ask(logprobs) == split
    await world.until(lambda: all(len(f.shards()) == 1 for f in world.foragers.values()))

    await world.queen.unload("tiny")
    assert [f.shards() for f in world.foragers.values()] == [[], []]
    with pytest.raises(AntfarmError) as caught:
        await world.ask()
    assert caught.value.reason is Reason.MODEL_RETIRED
    kinds = [event.kind for event in await world.ops()]
    assert kinds == [
        "forager-joined",
        "forager-joined",
        "model-loading",
        "model-ready",
        "model-loading",
        "model-ready",
        "model-retired",
    ]


async def test_a_new_split_lets_running_tasks_finish(world: World, tiny: Path) -> None:
    await asyncio.gather(world.forager("a"), world.forager("b"))
    await world.load(tiny, 1)
    run = world.queen.tasks.run(TaskRequest("tiny", Sampling(max_tokens=400, ignore_eos=True), tokens=(1, 2)))
    async with aclosing(run) as events:
        await anext(events)
        assert (await world.load(tiny, 2, reshard=True)).epoch == 2
        assert world.queen.tasks._route(TaskRequest("tiny", Sampling(), tokens=(1, 2))).epoch == 2
        rest = [event async for event in events]
    last = rest[-1]
    assert isinstance(last, TaskFinished)
    assert (last.finish, last.index, last.failure) == ("length", 400, None)
    await world.until(lambda: all(len(f.shards()) == 1 for f in world.foragers.values()))


async def test_a_new_split_that_can_not_be_keeps_the_old_one(world: World, tiny: Path) -> None:
    await asyncio.gather(world.forager("a"), world.forager("b"))
    await world.load(tiny, 1)
    with pytest.raises(AntfarmError) as caught:
        await world.load(tiny, 3, reshard=True)
    assert caught.value.reason is Reason.NO_CAPACITY
    assert len(await world.ask(Sampling(temperature=0.0, max_tokens=2, ignore_eos=True, logprobs=0))) == 2
    assert (await world.load(tiny, 2, reshard=True)).epoch == 3
    assert world.queen.status()[0].state == "ready"


async def test_a_model_is_fetched_by_the_foragers(world: World, tiny: Path) -> None:
    await asyncio.gather(world.forager("a"), world.forager("b"))
    size = tiny.stat().st_size  # noqa: ASYNC240
    bus = await Bus.connect(world.queen.bus_url, world.token, "watcher")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tiny.parent))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        async with await bus.subscribe(PULL_EVENTS) as pulls:
            assert await bus.answers(5)  # and so it knows of the subscription
            await world.load(f"http://127.0.0.1:{server.server_port}/{tiny.name}", 2)
            told = await asyncio.wait_for(anext(pulls), 20)
        assert told.total == size
        assert [path.stat().st_size for path in world.home.models.rglob("*.gguf")] == [size]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        await bus.close()


async def test_operators_speak_over_the_bus(world: World, tiny: Path) -> None:
    await world.forager("a")
    bus = await Bus.connect(world.queen.bus_url, world.token, "operator")
    try:
        asked = await bus.request(QUEEN_LOAD, LoadModel(str(tiny)))
        assert (asked.model, asked.state) == ("tiny-llama-f32", "loading")
        await world.until(lambda: world.queen.status()[0].state == "ready")
        assert [m.state for m in (await bus.request(QUEEN_MODELS, ListModels())).models] == ["ready"]
        with pytest.raises(AntfarmError) as caught:
            await bus.request(QUEEN_LOAD, LoadModel(str(tiny)))
        assert caught.value.reason is Reason.MODEL_LOADED
        assert await bus.request(QUEEN_UNLOAD, UnloadModel("tiny-llama-f32")) == Done()
        with pytest.raises(AntfarmError) as caught:
            await bus.request(QUEEN_UNLOAD, UnloadModel("nothing"))
        assert caught.value.reason is Reason.MODEL_UNKNOWN
    finally:
        await bus.close()


async def test_a_killed_shard_makes_the_model_unavailable_and_a_load_brings_it_back(
    world: World, tiny: Path
) -> None:
    await asyncio.gather(world.forager("a"), world.forager("b"))
    status = await world.load(tiny, 2)
    victim = world.foragers[status.shards[1].forager].shards()[0].pid
    stop(victim)  # so that the answer does not end before it does
    long = Sampling(temperature=0.0, max_tokens=400, ignore_eos=True)
    run = world.queen.tasks.run(TaskRequest("tiny", long, tokens=(1, 2, 3)))
    async with aclosing(run) as events:
        await anext(events)
        os.kill(victim, signal.SIGKILL)
        rest = [event async for event in events]
    last = rest[-1]
    assert isinstance(last, TaskFinished) and last.failure
    assert last.failure.reason == Reason.SHARD_FAILED
    with pytest.raises(AntfarmError) as caught:
        await world.ask()
    assert caught.value.reason is Reason.SHARD_MISSING
    assert f"shard 1 on {status.shards[1].forager}" in caught.value.message
    assert world.queen.status()[0].state == "unavailable"
    await world.until(lambda: not any(forager.shards() for forager in world.foragers.values()))
    assert [e.kind for e in await world.ops()].count("shard-missing") == 1

    again = await world.load(tiny, 2)
    assert (again.state, again.epoch) == ("ready", 2)
    assert len(await world.ask(Sampling(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=0))) == 3


async def test_a_killed_forager_is_lost_and_its_shards_end_with_it(world: World, tiny: Path) -> None:
    await asyncio.gather(world.forager("a"), world.forager("b"))
    status = await world.load(tiny, 2)
    name = status.shards[1].forager
    victim = world.foragers[name]
    orphan = victim.shards()[0]
    victim.send(signal.SIGKILL)
    await victim.wait()
    await world.until(lambda: world.queen.status()[0].state == "unavailable")
    with pytest.raises(AntfarmError) as caught:
        await world.ask()
    assert caught.value.reason is Reason.SHARD_MISSING
    assert name in caught.value.message
    assert await asyncio.to_thread(psutil.wait_procs, [orphan], 30) == ([orphan], [])
    await world.until(lambda: [f.id for f in world.queen.foragers()] == [status.shards[0].forager])
    kinds = [event.kind for event in await world.ops()]
    assert kinds.count("shard-missing") == kinds.count("forager-lost") == 1

    bus = await Bus.connect(world.queen.bus_url, world.token, "reader")
    try:
        registry = await Registry.open(bus)
        async with asyncio.timeout(6 * EXPIRY_S):  # in the bus itself its entry expires
            while name in (members := [one.id for one in await registry.snapshot()]):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert members == [status.shards[0].forager]
    finally:
        await bus.close()


async def test_a_forager_killed_while_loading_leaves_nothing_running(world: World, tiny: Path) -> None:
    _, b = await asyncio.gather(world.forager("a"), world.forager("b"))
    asked = await world.queen.load(LoadModel(str(tiny), name="tiny", split=2))
    await world.until(lambda: b.shards())
    b.send(signal.SIGKILL)
    await b.wait()
    await world.until(lambda: world.queen.status()[0].state in ("failed", "unavailable"))
    assert world.queen.status()[0].epoch == asked.epoch
    await world.until(lambda: not world.foragers["a"].shards())
    with pytest.raises(AntfarmError):
        await world.ask()


async def test_closing_the_iterator_frees_the_slot(world: World, tiny: Path) -> None:
    await world.forager("a")
    await world.load(tiny, 1)
    endless = Sampling(temperature=0.0, max_tokens=500, ignore_eos=True)
    async with aclosing(world.queen.tasks.run(TaskRequest("tiny", endless, tokens=(1,)))) as events:
        async for event in events:
            if isinstance(event, TaskTokens):
                break
    assert (
        len(
            await asyncio.wait_for(
                world.ask(Sampling(temperature=0.0, max_tokens=2, ignore_eos=True, logprobs=0)), 20
            )
        )
        == 2
    )


async def test_a_prompt_too_long_is_raised_with_its_numbers(world: World, tiny: Path) -> None:
    await world.forager("a")
    await world.load(tiny, 1)
    with pytest.raises(AntfarmError) as caught:
        async for _ in world.queen.tasks.run(TaskRequest("tiny", GREEDY, tokens=tuple([1] * 5000))):
            pass
    assert caught.value.reason is Reason.CONTEXT_OVERFLOW


async def test_what_does_not_fit_is_refused_with_numbers(world: World, tiny: Path) -> None:
    await world.forager("a", mib=16)
    with pytest.raises(AntfarmError) as caught:
        await world.load(tiny, 1)
    assert caught.value.reason is Reason.NO_CAPACITY
    with pytest.raises(AntfarmError) as caught:
        await world.load(tiny, 2)
    assert caught.value.reason is Reason.NO_CAPACITY
    with pytest.raises(AntfarmError) as caught:
        await world.load(Path("/nowhere/model.gguf"), 1)
    assert caught.value.reason is Reason.MODEL_UNKNOWN
    assert world.foragers["a"].shards() == []
    with pytest.raises(AntfarmError, match="tiny did not load"):
        await world.ask()
    stats = world.queen.stats()
    assert (stats.models, stats.replicas) == ((), ())


async def test_a_name_is_taken_once(world: World) -> None:
    await world.forager("a")
    secret = Secret.load_or_create(world.home.secret_file)
    with pytest.raises(AntfarmError) as caught:
        await Forager.start(ForagerSettings(world.home, secret, world.queen.bus_url, name="a"))
    assert caught.value.reason is Reason.BAD_SETTING
    assert "--name" in caught.value.hint


async def test_foragers_of_one_machine_know_it(world: World) -> None:
    secret = Secret.load_or_create(world.home.secret_file)
    await world.forager("a")
    forager = await Forager.start(ForagerSettings(world.home, secret, world.queen.bus_url, name="b"))
    try:
        (told,), found = world.queen.foragers()[:1], forager.facts
        assert told.machine == found.machine and told.pid != found.pid
        assert (told.memory_told, found.memory_told) == (True, False)
    finally:
        await forager.close()


async def test_a_forager_whose_heart_breaks_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be lost to the queen, and not know it."""
    secret = Secret.load_or_create(world.home.secret_file)
    forager = await Forager.start(ForagerSettings(world.home, secret, world.queen.bus_url, name="a"))
    try:

        def breaks() -> NoReturn:
            raise KeyError("surprise")

        monkeypatch.setattr(forager._nursery, "statuses", breaks)
        with pytest.raises(KeyError):
            await asyncio.wait_for(forager.wait(), 10)
    finally:
        await forager.close()


async def test_a_forager_ends_cleanly_on_sigterm(world: World, tiny: Path) -> None:
    a = await world.forager("a")
    await world.load(tiny, 1)
    shard = a.shards()[0]
    a.send(signal.SIGTERM)
    assert await a.wait() == 0
    assert not shard.is_running()
    await world.until(lambda: world.queen.foragers() == [])
    assert world.queen.status()[0].state == "unavailable"


async def test_a_crash_of_the_bus_costs_no_model(world: World, tiny: Path) -> None:
    await world.forager("a")
    await world.load(tiny, 1)
    assert world.queen._server
    os.kill(world.queen._server.pid, signal.SIGKILL)
    await world.until(lambda: not world.queen._bus.connected)
    await world.until(lambda: world.queen._bus.connected)
    short = Sampling(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=0)

    async def answers() -> list[int]:
        while True:  # the forager may be back later than the queen
            try:
                return await world.ask(short)
            except AntfarmError as error:
                assert error.reason in (Reason.FORAGER_LOST, Reason.BUS_UNREACHABLE, Reason.TIMEOUT)
                await asyncio.sleep(0.1)

    assert len(await asyncio.wait_for(answers(), 30)) == 3
    assert world.queen.status()[0].epoch == 1


async def test_a_bus_that_hangs_costs_nothing(world: World, tiny: Path) -> None:
    """While nobody can be heard, nobody is judged; afterwards everyone has the whole time again."""
    await asyncio.gather(world.forager("a"), world.forager("b"))
    await world.load(tiny, 2)
    server = world.queen._server
    assert server
    with stopped(server.pid):
        await asyncio.sleep(LOST_AFTER_S + 4)
    await asyncio.sleep(HEARTBEAT_S + 1)
    assert not any(job.done() for job in world.queen._jobs)
    assert len(await world.ask(Sampling(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=0))) == 3
    assert "forager-lost" not in [event.kind for event in await world.ops()]


async def test_a_queen_that_crashed_is_replaced_at_once(world: World, tiny: Path) -> None:
    a = await world.forager("a")
    await world.load(tiny, 1)
    crashed = world.queen
    assert crashed._server
    port = crashed._server.port
    for job in crashed._jobs:  # as if killed: no goodbye, the lease is not given back
        job.cancel()
    await crashed._bus.close()
    await crashed._server.close()

    secret = Secret.load_or_create(world.home.secret_file)
    world.queen = await Queen.start(QueenSettings(world.home, secret, bus_port=port))
    await world.until(lambda: [f.id for f in world.queen.foragers()] == ["a"])
    await world.until(lambda: a.shards() == [])  # nobody asks for it any more
    assert (await world.load(tiny, 1)).epoch == 2


async def test_a_second_queen_is_refused(world: World) -> None:
    settings = QueenSettings(
        Home(world.home.path / "second"),
        Secret.load_or_create(world.home.secret_file),
        bus_url=world.queen.bus_url,
    )
    before = asyncio.all_tasks()
    with pytest.raises(AntfarmError) as caught:
        await Queen.start(settings)
    assert caught.value.reason is Reason.COLONY_EXISTS
    await world.until(lambda: asyncio.all_tasks() <= before)
