"""Supervision of one shard process: its words, its end, its memory."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from support.models import Models
from support.stopping import stop

from antfarm.errors import AntfarmError, Reason
from antfarm.forager import shard as module
from antfarm.forager.nursery import Nursery
from antfarm.messages import (
    ShardEvent,
    ShardFailed,
    ShardLink,
    ShardLoad,
    ShardLoaded,
    ShardProgress,
    ShardSpec,
    TaskAssign,
    TaskEvent,
)
from antfarm.model.gguf import GgufFile
from antfarm.split import HostShare, SplitRequest, plan
from antfarm.types import RunOptions, Sampling


class Bench:
    """A nursery whose reports are kept, and loads of a tiny model for it."""

    def __init__(self, logs: Path, model: Path, budget: int) -> None:
        self.events: asyncio.Queue[ShardEvent | TaskEvent] = asyncio.Queue()
        self.nursery = Nursery("a", budget, logs, self.events.put)
        self._model = model
        with GgufFile.open(model) as file:
            self._facts = file.facts

    def spec(self, replica: str = "m-1", epoch: int = 1, path: Path | None = None) -> ShardSpec:
        placed = plan(self._facts, [HostShare("a", 1 << 40)], SplitRequest(1), RunOptions(context=64))
        load = ShardLoad(replica, epoch, "m", self._facts.fingerprint, placed.plan, 0, placed.options)
        secret = "a-secret-of-the-tests"
        return ShardSpec(load, str(path or self._model), "shard 0 on a", "127.0.0.1", secret, 1)

    async def load(self, **changes: object) -> int:
        """Start a shard; returns its process id."""
        spec = self.spec(**changes)  # type: ignore[arg-type]
        return (await self.nursery.load(spec.load, spec)).pid

    async def event(self) -> ShardEvent | TaskEvent:
        """The next that is no progress."""
        while True:
            event = await asyncio.wait_for(self.events.get(), 30)
            if not isinstance(event, ShardProgress):
                return event


@pytest_asyncio.fixture
async def bench(tmp_path: Path, models: Models) -> AsyncIterator[Bench]:
    made = Bench(tmp_path / "logs", models.path("tiny-llama"), 1 << 30)
    yield made
    await made.nursery.close()
    assert [p for p in psutil.Process().children() if "antfarm.shard" in p.cmdline()] == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_crash_is_one_event_with_its_signal(bench: Bench, number: signal.Signals) -> None:
    pid = await bench.load()
    assert isinstance(await bench.event(), ShardLoaded)
    [status] = bench.nursery.statuses()
    assert (status.state, status.pid) == ("loaded", pid)
    assert status.resident > 1 << 20
    os.kill(pid, number)
    failed = await bench.event()
    assert isinstance(failed, ShardFailed)
    assert failed.failure.reason == Reason.SHARD_FAILED
    assert number.name in failed.failure.message
    assert "a-m-1-shard0.log" in failed.failure.hint
    await asyncio.sleep(0)
    assert bench.nursery.statuses() == ()
    assert bench.events.empty()


async def test_a_shard_that_fails_by_itself_says_so_once(bench: Bench, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    await bench.load(path=broken)
    failed = await bench.event()
    assert isinstance(failed, ShardFailed)
    assert failed.failure.reason == Reason.NOT_A_GGUF
    await bench.nursery.close()
    assert bench.events.empty()


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ({}, module.SPINS),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
async def test_threads_that_wait_do_not_spin_for_long_unless_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, ours: dict[str, str], expected: str | None
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    environment = psutil.Process(await bench.load()).environ()
    assert environment.get("GOMP_SPINCOUNT") == expected
    assert environment.get("OMP_WAIT_POLICY") == ours.get("OMP_WAIT_POLICY")


async def test_a_shard_whose_words_can_not_be_passed_on_ends(
    tmp_path: Path, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    """It would block for ever once its pipe is full."""
    bench = Bench(tmp_path, models.path("tiny-llama"), 1 << 30)
    report, failed = bench.events.put, asyncio.Event()

    async def breaks(event: ShardEvent | TaskEvent) -> None:
        if not failed.is_set():
            failed.set()
            raise KeyError("surprise")
        await report(event)

    bench.nursery._report = breaks
    try:
        await bench.load()
        ended = await bench.event()
        assert isinstance(ended, ShardFailed) and "SIGKILL" in ended.failure.message
        assert "surprise" in caplog.text
    finally:
        await bench.nursery.close()


async def test_a_stop_is_no_failure_and_frees_the_memory(bench: Bench) -> None:
    pid = await bench.load()
    await bench.nursery.stop("m-1", 1)
    assert not psutil.pid_exists(pid)
    assert bench.nursery.statuses() == ()
    while not bench.events.empty():
        assert not isinstance(bench.events.get_nowait(), ShardFailed)
    await bench.nursery.stop("m-1", 1)  # there is none any more


async def test_a_stop_while_it_starts(bench: Bench) -> None:
    loading = asyncio.create_task(bench.load())
    await asyncio.sleep(0)
    assert len(bench.nursery.statuses()) == 1
    await bench.nursery.stop("m-1", 1)
    with pytest.raises(AntfarmError) as caught:
        await loading
    assert caught.value.reason is Reason.SHARD_FAILED
    assert bench.nursery.statuses() == ()


async def test_a_stopped_process_is_killed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.2)
    pid = await bench.load()
    stop(pid)
    await bench.nursery.stop("m-1", 1)
    assert not psutil.pid_exists(pid)


async def test_the_budget_holds_for_all_shards_together(tmp_path: Path, models: Models) -> None:
    bench = Bench(tmp_path, models.path("tiny-llama"), 100 << 20)
    try:
        await bench.load()
        with pytest.raises(AntfarmError) as caught:
            await bench.load(replica="n-1")
        assert caught.value.reason is Reason.NO_CAPACITY
        assert caught.value.numbers["free"] < caught.value.numbers["needed"] < 100 << 20  # type: ignore[operator]
        with pytest.raises(AntfarmError):
            await bench.load()
        stopping = asyncio.create_task(bench.nursery.stop("m-1", 1))
        await asyncio.sleep(0.01)
        await bench.load(replica="n-1")  # waits for the memory that is on its way
        await stopping
    finally:
        await bench.nursery.close()


async def test_what_reaches_no_shard_is_refused(bench: Bench) -> None:
    for wanted in (
        bench.nursery.link(ShardLink("x-1", 1, ())),
        bench.nursery.assign(TaskAssign("t", "x-1", 1, Sampling(), text="hi")),
    ):
        with pytest.raises(AntfarmError) as caught:
            await wanted
        assert caught.value.reason is Reason.SHARD_MISSING


async def test_garbage_on_stdout_is_ignored_and_an_endless_line_ends_the_shard(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in the shard's place that says what a shard never says."""
    program = tmp_path / "shard.py"
    program.write_text(
        "import sys\n"
        "sys.stdin.readline()\n"
        "print('no json')\n"
        'print(\'{"type":"shard-listening","replica":"m-1","epoch":1,"shard":0,'
        '"address":"127.0.0.1","port":1,"pid":1}\', flush=True)\n'
        "sys.stdin.readline()\n"
        "print('x' * 100_000, flush=True)\n"
        "sys.stdin.read()\n"
    )
    monkeypatch.setattr(module, "LINE_BYTES", 10_000)
    monkeypatch.setattr(module, "COMMAND", (sys.executable, str(program)))
    bench = Bench(tmp_path, models.path("tiny-llama"), 1 << 30)
    try:
        assert await bench.load() == 1
        await bench.nursery.link(ShardLink("m-1", 1, ()))
        failed = await bench.event()
        assert isinstance(failed, ShardFailed)
        assert "SIGKILL" in failed.failure.message
    finally:
        await bench.nursery.close()
