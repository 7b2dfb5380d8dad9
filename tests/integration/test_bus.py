"""The bus against a real nats-server."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from support.colony import TOKEN, connected, running_server
from support.stopping import stopped

from antfarm.bus import Bus, EmbeddedServer, OpsLog, Registry
from antfarm.bus.registry import BUCKET, ForagerGone
from antfarm.bus.subjects import FORAGER_STOP, QUEEN_MODELS, SHARD_EVENTS
from antfarm.config import Home
from antfarm.errors import AntfarmError, Reason, StateError
from antfarm.messages import Done, ForagerFacts, ListModels, ModelList, OpsEvent, ShardLinked, ShardStop

STOP = FORAGER_STOP.of("a")


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with running_server(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[Bus]:
    async with connected(server) as client:
        yield client


def facts(forager: str, pid: int = 1) -> ForagerFacts:
    return ForagerFacts(forager, "host", "127.0.0.1", 2, 1, 1 << 30, ("CPU",), (), "0", pid, 0.0, "m", True)


# ---- the server


async def test_the_token_is_in_no_process_list_and_readable_by_its_owner_alone(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    assert TOKEN not in " ".join(psutil.Process(server.pid).cmdline())
    assert TOKEN not in " ".join(psutil.Process(server.pid).environ().values())
    config = tmp_path / "bus" / "nats.conf"
    assert TOKEN in config.read_text()
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert [c.laddr.ip for c in psutil.Process(server.pid).net_connections() if c.status == "LISTEN"] == [
        "127.0.0.1"
    ]
    assert TOKEN not in (tmp_path / "logs" / "nats.log").read_text()


async def test_a_port_in_use_is_named_and_nothing_is_left(server: EmbeddedServer, tmp_path: Path) -> None:
    with pytest.raises(StateError) as caught:
        await EmbeddedServer.start(Home(tmp_path / "second"), TOKEN, port=server.port)
    assert caught.value.reason is Reason.PORT_IN_USE
    assert str(server.port) in caught.value.message
    assert not (tmp_path / "second" / "bus" / "nats.conf").exists()


async def test_a_crash_of_the_server_is_noticed(server: EmbeddedServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    assert await asyncio.wait_for(server.wait(), 20) == -signal.SIGKILL


async def test_the_server_ends_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys, time\n"
        "from pathlib import Path\n"
        "from antfarm.bus import EmbeddedServer\n"
        "from antfarm.config import Home\n"
        "async def main():\n"
        "    server = await EmbeddedServer.start(Home(Path(sys.argv[1])), 'token')\n"
        "    print(server.pid, flush=True)\n"
        "    time.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = psutil.Process(int(await asyncio.wait_for(parent.stdout.readline(), 60)))
    parent.kill()
    await parent.wait()
    assert await asyncio.to_thread(psutil.wait_procs, [child], 30) == ([child], [])


# ---- the client


async def test_a_wrong_secret_is_refused_at_once(server: EmbeddedServer) -> None:
    began = time.monotonic()
    for _ in range(40):  # the server resets the connection after its refusal, and now and then too soon
        with pytest.raises(AntfarmError) as caught:
            await Bus.connect(server.url, "wrong", "stranger")
        assert caught.value.reason is Reason.BUS_UNAUTHORIZED
        assert "wrong" not in str(caught.value)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("url", ["nats://127.0.0.1:9", "nats://no-such-host.invalid:4222"])
async def test_an_unreachable_bus_is_named_with_its_url(url: str) -> None:
    with pytest.raises(AntfarmError) as caught:
        await Bus.connect(url, TOKEN, "lonely", within=3)
    assert caught.value.reason is Reason.BUS_UNREACHABLE
    assert url in caught.value.message
    assert caught.value.hint


async def test_a_server_that_accepts_and_says_nothing_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(AntfarmError) as caught:
        await Bus.connect(f"nats://127.0.0.1:{silent.getsockname()[1]}", TOKEN, "patient", within=0.3)
    assert caught.value.reason is Reason.BUS_UNREACHABLE


async def test_request_and_reply_and_the_servers_own_error(server: EmbeddedServer, bus: Bus) -> None:
    async def handler(request: ShardStop) -> Done:
        if request.epoch == 2:
            raise StateError(Reason.SHARD_FAILED, "it died", hint="look", code=9)
        if request.epoch == 3:
            raise KeyError("surprise")
        return Done()

    await bus.serve(FORAGER_STOP.of("a"), handler)
    async with connected(server) as asker:
        assert await asker.request(STOP, ShardStop("r", 1)) == Done()
        with pytest.raises(AntfarmError) as caught:
            await asker.request(STOP, ShardStop("r", 2))
        assert (caught.value.reason, caught.value.numbers) == (Reason.SHARD_FAILED, {"code": 9})
        with pytest.raises(AntfarmError) as caught:
            await asker.request(STOP, ShardStop("r", 3))
        assert caught.value.reason is Reason.INTERNAL
        assert "KeyError" in caught.value.message
        with pytest.raises(AntfarmError) as caught:
            await asker.request(FORAGER_STOP.of("forager-2"), ShardStop("r", 1))
        assert caught.value.reason is Reason.FORAGER_LOST
        assert caught.value.message == "forager-2 does not answer"
        with pytest.raises(AntfarmError) as caught:
            await asker.request(QUEEN_MODELS, ListModels())
        assert caught.value.reason is Reason.COLONY_DOWN
        assert caught.value.message == "the queen does not answer"


async def test_a_slow_handler_holds_up_nobody_and_times_out(server: EmbeddedServer, bus: Bus) -> None:
    release = asyncio.Event()

    async def handler(request: ShardStop) -> Done:
        if request.epoch == 1:
            await release.wait()
        return Done()

    await bus.serve(STOP, handler)
    async with connected(server) as asker:
        with pytest.raises(AntfarmError) as caught:
            await asker.request(STOP, ShardStop("r", 1), within=0.1)
        assert caught.value.reason is Reason.TIMEOUT
        assert await asker.request(STOP, ShardStop("r", 2)) == Done()
    release.set()


async def test_garbage_is_answered_and_kills_no_subscriber(
    server: EmbeddedServer, bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(request: ShardStop) -> Done:
        return Done()

    await bus.serve(STOP, handler)
    events = await bus.subscribe(SHARD_EVENTS)
    async with connected(server) as stranger:
        raw = stranger._nats
        for garbage in (b"\x00\xff", b"[]", b'{"type":"shard-load"}'):
            reply = await raw.request(STOP.name, garbage, timeout=5)
            assert b"invalid-request" in reply.data
            with caplog.at_level(logging.WARNING):
                await raw.publish("antfarm.v1.shard.x", garbage)
        assert await stranger.request(STOP, ShardStop("r", 1)) == Done()
        await stranger.publish(SHARD_EVENTS.of("a"), ShardLinked("r", 1, 0))
        assert await asyncio.wait_for(anext(events), 20) == ShardLinked("r", 1, 0)
    assert caplog.text.count("a malformed message") == 3


async def test_events_come_in_order_and_end_with_the_bus(server: EmbeddedServer) -> None:
    async with connected(server) as listener, connected(server) as speaker:
        events = await listener.subscribe(SHARD_EVENTS)
        assert await listener.answers(5)  # and so it has seen the subscription
        for shard in range(500):
            await speaker.publish(SHARD_EVENTS.of("a"), ShardLinked("r", 1, shard))
        seen = [await asyncio.wait_for(anext(events), 20) for _ in range(500)]
        assert [event.shard for event in seen if isinstance(event, ShardLinked)] == list(range(500))
        await listener.close()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(events), 20)


async def test_a_message_too_large_is_refused_here(bus: Bus) -> None:
    with pytest.raises(AntfarmError) as caught:
        await bus.publish(SHARD_EVENTS.of("a"), ShardLinked("r" * (9 << 20), 1, 0))
    assert caught.value.reason is Reason.INVALID_REQUEST


async def test_a_client_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    async def handler(request: ShardStop) -> Done:
        return Done()

    async with running_server(tmp_path) as first:
        port = first.port
        bus = await Bus.connect(first.url, TOKEN, "survivor")
        await bus.serve(STOP, handler)
        events = await bus.subscribe(SHARD_EVENTS)
    try:
        with pytest.raises(AntfarmError) as caught:
            await bus.request(QUEEN_MODELS, ListModels())
        assert caught.value.reason is Reason.BUS_UNREACHABLE
        await bus.publish(SHARD_EVENTS.of("a"), ShardLinked("kept", 1, 0))
        async with running_server(tmp_path, port=port) as second:
            assert await asyncio.wait_for(anext(events), 20) == ShardLinked("kept", 1, 0)
            async with connected(second) as asker:
                assert await asker.request(STOP, ShardStop("r", 1)) == Done()
    finally:
        await bus.close()


async def test_a_server_that_hangs_is_known_and_so_is_its_return(server: EmbeddedServer, bus: Bus) -> None:
    assert await bus.answers(5)
    with stopped(server.pid):
        assert bus.connected
        assert not await bus.answers(0.2)
    assert await bus.answers(5)
    assert await bus.answers(5)  # what answered too late has broken nothing
    await bus.close()
    assert not await bus.answers(0.2)


async def test_a_connection_that_breaks_while_it_is_closed_is_closed(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    bus = await Bus.connect(server.url, TOKEN, "unlucky")
    really = bus._nats.close
    monkeypatch.setattr(bus._nats, "close", broken)
    await bus.close()
    await asyncio.wait_for(bus.wait_closed(), 20)
    await really()


# ---- the registry


async def test_the_registry_lists_watches_and_says_goodbye(bus: Bus) -> None:
    registry = await Registry.open(bus)
    assert await registry.snapshot() == []
    await registry.put(facts("b"))
    changes = await registry.watch()
    await registry.put(facts("a"))
    await registry.put(facts("b", pid=2))
    await registry.remove("a")
    seen = [await asyncio.wait_for(anext(changes), 20) for _ in range(3)]
    assert seen == [facts("a"), facts("b", pid=2), ForagerGone("a")]
    assert await registry.snapshot() == [facts("b", pid=2)]


async def test_the_registry_lists_who_writes_to_it_just_then(server: EmbeddedServer, bus: Bus) -> None:
    registry = await Registry.open(bus)
    await registry.put(facts("a"))

    async def beat(speaker: Bus) -> None:
        writer = await Registry.open(speaker)
        for pid in range(1_000_000):
            await writer.put(facts("b", pid))

    async with connected(server) as speaker:
        await registry.put(facts("b"))
        beating = asyncio.create_task(beat(speaker))
        for _ in range(100):
            assert [one.id for one in await registry.snapshot()] == ["a", "b"]
        beating.cancel()
    assert (await bus.jetstream().stream_info(f"KV_{BUCKET}")).state.consumer_count == 0


async def test_garbage_in_the_registry_is_ignored(bus: Bus) -> None:
    registry = await Registry.open(bus)
    await registry._bucket.put("forager.evil", b"not json")
    await registry.put(facts("good"))
    assert await registry.snapshot() == [facts("good")]


async def test_one_bus_has_one_queen(server: EmbeddedServer, bus: Bus) -> None:
    async def models(request: ListModels) -> ModelList:
        return ModelList(())

    lease = await (await Registry.open(bus)).acquire("queen on a")
    await bus.serve(QUEEN_MODELS, models)
    async with connected(server) as other:
        registry = await Registry.open(other)
        with pytest.raises(StateError) as caught:
            await registry.acquire("queen on b")
        assert caught.value.reason is Reason.COLONY_EXISTS
        assert "queen on a" in caught.value.message
        await lease.release()
        await registry.acquire("queen on b")


async def test_a_dead_queens_lease_is_taken_over_and_the_old_one_learns_of_it(
    server: EmbeddedServer, bus: Bus
) -> None:
    lease = await (await Registry.open(bus)).acquire("queen on a")  # serves nothing: as if dead
    async with connected(server) as other:
        await (await Registry.open(other)).acquire("queen on b")
    with pytest.raises(StateError) as caught:
        await asyncio.wait_for(lease.keep(), 30)
    assert caught.value.reason is Reason.COLONY_EXISTS


async def test_a_lease_is_kept_through_a_hang_of_the_bus(
    server: EmbeddedServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server carries out the renewal whose answer came too late; its revision is then unknown."""
    monkeypatch.setattr("antfarm.bus.client.REQUEST_S", 1.0)
    monkeypatch.setattr("antfarm.bus.registry.RENEW_S", 0.05)
    lease = await (await Registry.open(bus)).acquire("queen on a")
    keeping = asyncio.create_task(lease.keep())
    with stopped(server.pid):
        await asyncio.sleep(2.3)  # two renewals give up
    done, _ = await asyncio.wait([keeping], timeout=1.5)
    assert not done
    keeping.cancel()
    await lease._renew()


async def test_members_and_the_lease_are_there_again_after_a_restart(tmp_path: Path) -> None:
    async with running_server(tmp_path) as first:
        port = first.port
        bus = await Bus.connect(first.url, TOKEN, "queen")
        registry = await Registry.open(bus)
        lease = await registry.acquire("queen on a")
    try:
        async with running_server(tmp_path, port=port), asyncio.timeout(20):
            while not await bus.answers(1):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await lease._renew()
            await lease._renew()
            await registry.put(facts("a"))
            assert await registry.snapshot() == [facts("a")]
    finally:
        await bus.close()


async def test_members_need_no_disk(bus: Bus) -> None:
    await OpsLog.open(bus)
    await bus.jetstream().add_stream(name="HOG", subjects=["hog"], max_bytes=230 << 20)
    registry = await Registry.open(bus)
    await registry.put(facts("a"))
    assert (await bus.jetstream().stream_info("KV_antfarm-members")).config.storage == "memory"


# ---- the ops log


def event(n: int, kind: str = "model-ready") -> OpsEvent:
    return OpsEvent(float(n), kind, "m", f"event {n}")


async def test_the_ops_log_keeps_order_counts_and_follows(bus: Bus) -> None:
    ops = await OpsLog.open(bus)
    assert await ops.recent(5) == []
    for n in range(4):
        await ops.append(event(n, "forager-lost" if n == 2 else "model-ready"))
    assert await ops.recent(2) == [event(2, "forager-lost"), event(3)]
    assert await ops.recent(99) == [event(0), event(1), event(2, "forager-lost"), event(3)]
    assert await ops.counts() == {"forager-lost": 1, "model-ready": 3}
    follower = ops.follow(1)
    assert await asyncio.wait_for(anext(follower), 20) == event(3)
    waiting = asyncio.ensure_future(anext(follower))
    await ops.append(event(4))
    assert await asyncio.wait_for(waiting, 20) == event(4)
    await follower.aclose()


async def test_the_ops_log_is_bounded(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antfarm.bus.ops.MAX_MESSAGES", 10)
    ops = await OpsLog.open(bus)
    for n in range(25):
        await ops.append(event(n))
    assert await ops.recent(99) == [event(n) for n in range(15, 25)]


async def test_the_ops_log_outlives_a_restart(tmp_path: Path) -> None:
    for n in range(2):
        async with running_server(tmp_path) as server, connected(server) as bus:
            ops = await OpsLog.open(bus)
            await ops.append(event(n))
            assert await ops.recent(9) == [event(i) for i in range(n + 1)]


async def test_a_full_bus_is_named_and_never_hangs(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    await bus.jetstream().add_stream(name="HOG", subjects=["hog"], max_bytes=250 << 20)
    with pytest.raises(AntfarmError) as caught:
        await OpsLog.open(bus)
    assert caught.value.reason is Reason.BUS_FULL


async def test_a_write_to_a_full_bucket_is_bus_full(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antfarm.bus.registry._MAX_BYTES", 2000)
    registry = await Registry.open(bus)
    with pytest.raises(AntfarmError) as caught:
        for n in range(20):
            await registry.put(facts(f"f{n}"))
    assert caught.value.reason is Reason.BUS_FULL
