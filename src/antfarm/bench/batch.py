"""`antc bench batch`: what company does to an answer, as ratios taken side by side in one run.

A private colony as in `antc bench split`; every scenario measures each round anew, and a ratio is taken
within a round. Speeds are those that clients see: pieces of text at the end of a stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

import antfarm
from antfarm.bench.colony import (
    UNSPLIT,
    Say,
    Split,
    check_hosts,
    load,
    machine,
    model_file,
    private_colony,
    splits,
)
from antfarm.bench.endpoint import connected, settle
from antfarm.bench.lab import BatchBench, Lab, grow, sound
from antfarm.bench.mix import token_ids
from antfarm.bench.split import lead_timings
from antfarm.bench.stats import gaps, pieces_between
from antfarm.bench.stream import Trace, ask
from antfarm.client import wire
from antfarm.client.answers import api_of
from antfarm.config import Home
from antfarm.types import RunOptions

CHAT_ANSWER = 4  # tokens; short, since a random model's text has many more tokens when it is read again
ONE_SLOT = Split("one slot", "auto", 1)  # the unsplit model as `antc bench split` loads it


class Figure(msgspec.Struct, frozen=True):
    """`value` is the median of the rounds. Units: tok/s, tokens, s, x (a ratio)."""

    scenario: str
    name: str
    unit: str
    value: float
    rounds: tuple[float, ...]


class BatchResult(msgspec.Struct, frozen=True):
    version: str
    machine: str
    model: str
    streams: int
    prompt_tokens: int
    answer_tokens: int
    disturbed: int
    long_prompt: int
    history: int
    figures: tuple[Figure, ...]


Readings = dict[tuple[str, str], float]
"""One round of a scenario: values by name and unit."""


def run(bench: BatchBench, say: Say) -> BatchResult:
    """Measure. Takes minutes. Raises what loading raises, and the first request that fails."""
    check_hosts(bench.hosts)
    with (
        model_file(bench.subject, say) as (path, facts),
        private_colony(bench.hosts, facts, say) as home,
    ):
        figures = asyncio.run(_measure(bench, home, path, say))
    return BatchResult(
        version=antfarm.__version__,
        machine=machine(),
        model=bench.subject.name,
        streams=bench.streams,
        prompt_tokens=bench.prompt,
        answer_tokens=bench.answer,
        disturbed=bench.disturbed,
        long_prompt=bench.long_prompt,
        history=bench.history,
        figures=figures,
    )


async def _measure(bench: BatchBench, home: Home, path: Path, say: Say) -> tuple[Figure, ...]:
    slots = max(bench.streams, bench.disturbed + 1)
    many = RunOptions(context=bench.context, slots=slots)
    wanted = dict.fromkeys(splits(bench.hosts), many)
    await load(home, path, wanted | {ONE_SLOT: RunOptions(context=bench.context)}, say)
    names = bench.scenarios or tuple(SCENARIOS)
    rounds: dict[str, list[Readings]] = {name: [] for name in names}
    async with connected(*api_of(home), slots) as http:
        lab = Lab(bench, http)
        for split in (*wanted, ONE_SLOT):
            await settle(http, split.served, chat=False)  # warms it up
        for number in range(1, bench.rounds + 1):
            for name in names:
                say(f"round {number} of {bench.rounds}: {name}")
                rounds[name].append(await SCENARIOS[name](lab))
    return tuple(figure for name in names for figure in _figures(name, rounds[name]))


def _figures(scenario: str, rounds: Sequence[Readings]) -> list[Figure]:
    return [
        Figure(
            scenario, name, unit, median(r[name, unit] for r in rounds), tuple(r[name, unit] for r in rounds)
        )
        for name, unit in rounds[0]
    ]


async def streams(lab: Lab) -> Readings:
    """Total answer tokens a second of many streams on each split, and of one on the unsplit model."""
    rates: dict[str, float] = {}
    for split in splits(lab.bench.hosts):
        rates[split.name] = await lab.together(split, lab.bench.streams)
    alone = await lab.together(lab.unsplit, 1)
    many = f"{lab.bench.streams} streams"
    found: Readings = {(f"{UNSPLIT}, 1 stream", "tok/s"): alone}
    found |= {(f"{name}, {many}", "tok/s"): rate for name, rate in rates.items()}
    found[f"{UNSPLIT}, {many} to 1", "x"] = rates[UNSPLIT] / alone
    found |= {
        (f"{name} to {UNSPLIT}, {many}", "x"): rate / rates[UNSPLIT]
        for name, rate in rates.items()
        if name != UNSPLIT
    }
    return found


async def disturbance(lab: Lab) -> Readings:
    """Streams that decode while a long prompt is read, held against themselves just before and just after:
    meanwhile their own contexts grow by hundreds of tokens."""
    async with lab.decoding(lab.unsplit, lab.bench.disturbed) as traces:
        since = time.perf_counter()
        await grow(traces, lab.bench.quiet)
        prompt = await lab.complete(lab.unsplit, lab.bench.long_prompt, 1)
        arrived = prompt.pieces[0] if prompt.pieces else prompt.ended
        await grow(traces, 1)  # the gap that the last chunk makes ends here
        again = time.perf_counter()
        await grow(traces, lab.bench.quiet)
        until = time.perf_counter()
    pieces = pieces_between(traces, since, prompt.sent) + pieces_between(traces, again, until)
    quiet = pieces / (prompt.sent - since + until - again)
    busy = pieces_between(traces, prompt.sent, arrived) / (arrived - prompt.sent)
    usual = float(np.median(gaps(traces, since, prompt.sent)))
    largest = float(gaps(traces, prompt.sent, arrived).max())
    return {
        (f"{lab.bench.disturbed} streams undisturbed", "tok/s"): quiet,
        ("the same while the prompt is read", "tok/s"): busy,
        ("share that they keep", "x"): busy / quiet,
        ("undisturbed median gap", "s"): usual,
        ("largest gap while the prompt is read", "s"): largest,
        ("largest gap to undisturbed median", "x"): largest / usual,
        ("prompt to first token", "s"): arrived - prompt.sent,
    }


async def prompt(lab: Lab) -> Readings:
    """A long prompt with nobody decoding: with slots for many, and with one as `antc bench split` has it."""
    tokens = token_ids(1, lab.number(), lab.bench.long_prompt)
    many = (await lead_timings(lab.http, lab.unsplit.served, tokens, 2))["prompt_tokens_per_second"]
    one = (await lead_timings(lab.http, ONE_SLOT.served, tokens, 2))["prompt_tokens_per_second"]
    return {
        ("prompt with slots for many", "tok/s"): many,
        ("prompt with one slot", "tok/s"): one,
        ("slots for many to one", "x"): many / one,
    }


async def chat(lab: Lab) -> Readings:
    """Time to the first token of a conversation's first turn, which is long, and of its second."""
    dialect = await settle(lab.http, lab.unsplit.served, chat=True)
    history = [dialect.message(1, lab.number(), lab.bench.history)]
    cold = sound(await ask(lab.http, wire.CHAT, dialect.chat(history, CHAT_ANSWER), Trace(), keep=True))
    history += [{"role": "assistant", "content": cold.text}, {"role": "user", "content": "And then?"}]
    warm = sound(await ask(lab.http, wire.CHAT, dialect.chat(history, CHAT_ANSWER), Trace()))
    return {
        ("first turn, prompt", "tokens"): cold.prompt_tokens,
        ("second turn, prompt", "tokens"): warm.prompt_tokens,
        ("second turn, of that from cache", "tokens"): warm.cached_tokens,
        ("first turn, to first token", "s"): cold.first,
        ("second turn, to first token", "s"): warm.first,
        ("second turn to first", "x"): warm.first / cold.first,
    }


SCENARIOS: dict[str, Callable[[Lab], Awaitable[Readings]]] = {
    "streams": streams,
    "disturbance": disturbance,
    "prompt": prompt,
    "chat": chat,
}
