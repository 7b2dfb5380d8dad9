"""`antc bench soak`: clients that ask, wait and leave at random; nothing may break, leak or grow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import httpx
import msgspec

import antfarm
from antfarm.bench.colony import (
    Say,
    Split,
    Subject,
    check_hosts,
    load,
    machine,
    model_file,
    private_colony,
    splits,
)
from antfarm.bench.endpoint import Dialect, connected, settle
from antfarm.bench.mix import Mix, Spread
from antfarm.bench.residents import Resident, Residents
from antfarm.bench.serve import ServeBench, Tick, drive, progress, ticking
from antfarm.bench.stats import Traffic, summary
from antfarm.bench.stream import COMPLETIONS, Trace, ask
from antfarm.client.answers import api_of
from antfarm.config import Home
from antfarm.types import RunOptions

TRIES = 3  # to see all slots busy at once; a leaked slot fails each of them


@dataclass(frozen=True)
class SoakBench:
    """`clients` are shared among the splits. `growth` of a process's memory is allowed after warm-up."""

    subject: Subject
    prompt: Spread
    answer: Spread
    hosts: int = 2
    clients: int = 16
    seconds: float = 600.0
    slots: int = 4  # of each split: fewer than it has clients, so that requests wait as well
    context: int = 512
    cancel: float = 0.2
    growth: float = 0.02
    seed: int = 0


class Check(msgspec.Struct, frozen=True):
    what: str
    passed: bool
    found: str


class SoakResult(msgspec.Struct, frozen=True):
    version: str
    machine: str
    model: str
    seconds: float
    clients: int
    cancel: float
    checks: tuple[Check, ...]
    traffic: dict[str, Traffic]  # by split
    residents: tuple[Resident, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def run(bench: SoakBench, say: Say, tick: Tick) -> SoakResult:
    """Run for `seconds` and look at what is left. Raises what loading raises; findings are in the result."""
    check_hosts(bench.hosts)
    with (
        model_file(bench.subject, say) as (path, facts),
        private_colony(bench.hosts, facts, say) as home,
    ):
        return asyncio.run(_soak(bench, home, path, say, tick))


async def _soak(bench: SoakBench, home: Home, path: Path, say: Say, tick: Tick) -> SoakResult:
    every = splits(bench.hosts)
    options = RunOptions(context=bench.context, slots=bench.slots)
    await load(home, path, dict.fromkeys(every, options), say)
    residents = Residents(home)
    async with connected(*api_of(home), bench.clients) as http:
        say(f"{bench.clients} clients for {bench.seconds:g} s")
        traces: dict[Split, list[Trace]] = {split: [] for split in every}
        async with ticking(residents.sample), ticking(lambda: tick(progress([*chain(*traces.values())]))):
            await _load(bench, http, traces)
        traffic = {split.name: summary(done) for split, done in traces.items()}
        free = {split.name: await _all_slots(bench, http, split) for split in every}
    sizes = residents.result()
    return SoakResult(
        version=antfarm.__version__,
        machine=machine(),
        model=bench.subject.name,
        seconds=bench.seconds,
        clients=bench.clients,
        cancel=bench.cancel,
        checks=(
            no_errors(traffic),
            no_slot_lost(bench, free),
            all_alive(residents.ended()),
            memory_flat(sizes, bench.growth),
        ),
        traffic=traffic,
        residents=sizes,
    )


async def _load(bench: SoakBench, http: httpx.AsyncClient, traces: dict[Split, list[Trace]]) -> None:
    """All splits at the same time, each with its share of the clients."""

    async def one(index: int, split: Split) -> None:
        dialect = await settle(http, split.served, chat=False)
        mix = Mix(bench.prompt, bench.answer, bench.cancel, seed=bench.seed + index)
        clients = len(range(index, bench.clients, len(traces)))
        asked = ServeBench("", mix, streams=clients, requests=0, seconds=bench.seconds)
        await drive(http, dialect, asked, traces[split])

    await asyncio.gather(*(one(index, split) for index, split in enumerate(traces)))


async def _all_slots(bench: SoakBench, http: httpx.AsyncClient, split: Split) -> int:
    """How many answers this idle model, asked for one a slot, gives at the same time."""
    most = 0
    for attempt in range(TRIES):
        asked = [
            Dialect(split.served).completion(-1 - attempt, n, 8, bench.context // 2)
            for n in range(bench.slots)
        ]
        traces = await asyncio.gather(*(ask(http, COMPLETIONS, body, Trace()) for body in asked))
        most = max(most, together(traces))
        if most == bench.slots:
            break
    return most


def together(traces: Sequence[Trace]) -> int:
    """The most answers that were between their first and last piece at one moment."""
    spans = [(t.pieces[0], t.pieces[-1]) for t in traces if t.pieces]
    return max((sum(lo <= at <= hi for lo, hi in spans) for at, _ in spans), default=0)


def no_errors(traffic: dict[str, Traffic]) -> Check:
    errors = {f"{name}: {code}": n for name, t in traffic.items() for code, n in t.errors.items()}
    asked = sum(t.requests for t in traffic.values())
    left = sum(t.cancelled for t in traffic.values())
    answered = sum(t.answered for t in traffic.values())
    found = f"{asked} requests, {answered} answered, {left} left early by their client"
    said = "; ".join(f"{n} x {what}" for what, n in errors.items())
    return Check("no errors", not errors and answered > 0, f"{found}; {said}" if said else found)


def no_slot_lost(bench: SoakBench, free: dict[str, int]) -> Check:
    found = ", ".join(f"{name} {count}" for name, count in free.items())
    full = all(count == bench.slots for count in free.values())
    return Check("no slot lost", full, f"answers at once with {bench.slots} slots: {found}")


def all_alive(ended: Sequence[str]) -> Check:
    return Check("no process ended", not ended, ", ".join(ended) or "all run")


def memory_flat(sizes: Sequence[Resident], growth: float) -> Check:
    grown = [size for size in sizes if not size.flat(growth)]
    worst = max(sizes, key=lambda size: size.growth, default=None)
    found = ", ".join(f"{size.process} {size.growth:+.1%}" for size in grown or ([worst] if worst else []))
    return Check(f"memory flat within {growth:.0%} after warm-up", bool(sizes) and not grown, found)
