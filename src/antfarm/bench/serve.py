"""`antc bench serve`: many streams at once against an OpenAI endpoint, ours or another server's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx
import msgspec

import antfarm
from antfarm.bench.colony import machine
from antfarm.bench.endpoint import Dialect, connected, only_model, settle
from antfarm.bench.mix import Mix, Work, work
from antfarm.bench.stats import Traffic, summary
from antfarm.bench.stream import COMPLETIONS, Trace, ask
from antfarm.client import wire

LONGEST_S = 3600.0  # a run without a duration
TICK_S = 1.0  # between two progress lines
PAUSE_S = 0.1  # of a client whose request failed

Tick = Callable[[str], None]
"""Shown how far it is, once a second."""


@dataclass(frozen=True)
class ServeBench:
    """`streams` clients share `requests` (0: as many as there is time for), each a conversation when the
    mix has turns. After `seconds` no answer is waited for any longer."""

    url: str
    mix: Mix
    key: str = ""
    model: str = ""  # empty takes the only one
    streams: int = 8
    requests: int = 32
    seconds: float = LONGEST_S


class ServeResult(msgspec.Struct, frozen=True):
    version: str
    machine: str  # the client's
    url: str
    model: str
    streams: int
    prompt: str  # lengths in tokens, as asked for
    answer: str
    cancel: float
    turns: int
    seed: int
    ignores_eos: bool  # answers run to their full length
    counted: bool  # tokens by the server's word; else one for each piece of text
    interrupted: bool  # before the requests were through, or the time was up
    traffic: Traffic


async def run(bench: ServeBench, tick: Tick) -> ServeResult:
    """Measure. Raises when the endpoint can't be used at all; single failures are counted.

    Cancelled while the load runs, as Ctrl-C does, it ends that and gives what was measured until then.
    """
    interrupted = False
    async with connected(bench.url, bench.key, bench.streams) as http:
        model = bench.model or await only_model(http)
        dialect = await settle(http, model, chat=bench.mix.turns > 0)
        traces: list[Trace] = []
        try:
            async with ticking(lambda: tick(progress(traces))):
                await drive(http, dialect, bench, traces)
        except asyncio.CancelledError:
            interrupted = True
    return ServeResult(
        version=antfarm.__version__,
        machine=machine(),
        url=bench.url,
        model=model,
        streams=bench.streams,
        prompt=str(bench.mix.prompt),
        answer=str(bench.mix.answer),
        cancel=bench.mix.cancel,
        turns=bench.mix.turns,
        seed=bench.mix.seed,
        ignores_eos="ignore_eos" in dialect.extras,
        counted=dialect.counts,
        interrupted=interrupted,
        traffic=summary(traces, bench.mix.turns),
    )


async def drive(http: httpx.AsyncClient, dialect: Dialect, bench: ServeBench, traces: list[Trace]) -> None:
    """All streams until the requests are through or the time is up. Each adds its traces as it asks."""
    load = _Load(http, dialect, bench, traces)
    numbers = iter(range(bench.requests)) if bench.requests else count()
    async with asyncio.TaskGroup() as group:
        for _ in range(bench.streams):
            group.create_task(load.stream(numbers))


class _Load:
    def __init__(
        self, http: httpx.AsyncClient, dialect: Dialect, bench: ServeBench, traces: list[Trace]
    ) -> None:
        self._http = http
        self._dialect = dialect
        self._mix = bench.mix
        self._deadline = time.perf_counter() + bench.seconds
        self._traces = traces

    async def stream(self, numbers: Iterator[int]) -> None:
        """One client: the next number that nobody has taken yet, again and again."""
        for number in numbers:
            if time.perf_counter() >= self._deadline:
                return
            done = await (self._conversation if self._mix.turns else self._completion)(number)
            if done.outcome == "failed":
                await asyncio.sleep(PAUSE_S)

    async def _completion(self, number: int) -> Trace:
        todo = work(self._mix, number)
        body = self._dialect.completion(self._mix.seed, number, todo.prompt, todo.answer)
        return await self._ask(COMPLETIONS, body, todo, Trace(prompt=todo.prompt))

    async def _conversation(self, number: int) -> Trace:
        """Turn by turn, each with the whole history; the first one without a full answer ends it."""
        history: list[dict[str, str]] = []
        for turn in range(self._mix.turns):
            todo = work(self._mix, number * self._mix.turns + turn)
            history.append(self._dialect.message(self._mix.seed, todo.number, todo.prompt))
            trace = await self._ask(
                wire.CHAT, self._dialect.chat(history, todo.answer), todo, Trace(turn=turn)
            )
            history.append({"role": "assistant", "content": trace.text})
            trace.lines.clear()
            if trace.outcome != "answered":
                break
        return trace

    async def _ask(self, path: str, body: dict[str, Any], todo: Work, trace: Trace) -> Trace:
        self._traces.append(trace)
        keep = self._mix.turns > 1
        return await ask(self._http, path, body, trace, stay=todo.stay, deadline=self._deadline, keep=keep)


def progress(traces: Sequence[Trace]) -> str:
    """How far a load is, in a line."""
    seconds = time.perf_counter() - min((trace.sent for trace in traces), default=time.perf_counter())
    pieces = sum(len(trace.pieces) for trace in traces)
    ended = [trace for trace in traces if trace.ended]
    failed = sum(1 for trace in ended if trace.outcome == "failed")
    return (
        f"{seconds:.0f} s: {len(ended)} requests done, {len(traces) - len(ended)} running, {failed} failed, "
        f"{pieces / max(seconds, TICK_S):.1f} tok/s"
    )


@asynccontextmanager
async def ticking(look: Callable[[], None]) -> AsyncIterator[None]:
    """Call `look` every second while the block runs."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            look()

    ticker = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticker.cancel()
        await asyncio.wait([ticker])
