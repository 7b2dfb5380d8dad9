"""`antc bench split`: one model unsplit, tensor-split and pipeline-split, in one run.

A private colony is started with one forager a core. All splits are loaded at once and take turns,
round by round, so that whatever else the machine does falls on all of them alike; a ratio is
taken within a round, and the median over the rounds counts.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
import msgspec

import antfarm
from antfarm.bench.colony import (
    Say,
    Split,
    Subject,
    check_hosts,
    cores,
    load,
    machine,
    model_file,
    private_colony,
    splits,
)
from antfarm.bench.memory import read_bandwidth
from antfarm.bench.mix import token_ids
from antfarm.bench.stream import COMPLETIONS
from antfarm.client import wire
from antfarm.client.answers import api_of
from antfarm.config import Home
from antfarm.types import ModelFacts, RunOptions, WireFormat


@dataclass(frozen=True)
class SplitBench:
    subject: Subject
    hosts: int = 2
    prompt: int = 128  # tokens
    answer: int = 64  # tokens
    rounds: int = 5
    wire: WireFormat = WireFormat.F32


class Round(msgspec.Struct, frozen=True):
    """One prompt and one answer, by the lead's clock."""

    prompt: float  # tokens a second
    decode: float  # tokens a second


class Measured(msgspec.Struct, frozen=True):
    """One split. Ratios are to the unsplit model in the same round; rates and ratios are medians."""

    split: str
    shards: int
    prompt: float
    decode: float
    prompt_ratio: float
    decode_ratio: float
    wire_bytes: float  # sent and received by the lead for one decoded token
    waited: float  # share of decoding that the lead waited for its peers
    rounds: tuple[Round, ...]


class SplitResult(msgspec.Struct, frozen=True):
    version: str
    machine: str
    model: str
    bytes_per_token: int  # weights that one decoded token reads
    read_bandwidth: float  # bytes a second, one core
    bandwidth_share: float  # of it that unsplit decoding reaches
    prompt_tokens: int
    answer_tokens: int
    wire: str
    splits: tuple[Measured, ...]


def run(bench: SplitBench, say: Say) -> SplitResult:
    """Measure. Takes a minute or two. Raises what loading raises, and `bad-setting`."""
    check_hosts(bench.hosts)
    with model_file(bench.subject, say) as (path, facts):
        say("measuring how fast one core reads memory")
        bandwidth = read_bandwidth(cores()[0])
        with private_colony(bench.hosts, facts, say) as home:
            measured = asyncio.run(_measure(bench, home, path, say))
    return _result(bench, facts, bandwidth, measured)


def bytes_per_token(facts: ModelFacts) -> int:
    """Weight bytes that decoding one token reads: all but the embedding, of which it reads a row,
    unless that is the output head as well."""
    tied = not any(tensor.name == "output.weight" for tensor in facts.tensors)
    return sum(t.bytes for t in facts.tensors if tied or t.name != "token_embd.weight")


async def _measure(
    bench: SplitBench, home: Home, path: Path, say: Say
) -> dict[Split, list[tuple[Round, dict[str, float]]]]:
    options = RunOptions(context=bench.prompt + bench.answer + 1, wire=bench.wire)
    await load(home, path, dict.fromkeys(splits(bench.hosts), options), say)
    measured: dict[Split, list[tuple[Round, dict[str, float]]]] = {s: [] for s in splits(bench.hosts)}
    url, key = api_of(home)
    async with httpx.AsyncClient(**wire.options(url, key)) as http:
        for number in range(bench.rounds + 1):  # the first one warms up
            say(f"round {number} of {bench.rounds}" if number else "warming up")
            for split, rounds in measured.items():
                prompt = token_ids(0, number, bench.prompt)  # a new one, so that no cache holds it
                timings = await lead_timings(http, split.served, prompt, bench.answer)
                if number:
                    rates = Round(timings["prompt_tokens_per_second"], timings["answer_tokens_per_second"])
                    rounds.append((rates, timings))
    return measured


async def lead_timings(
    http: httpx.AsyncClient, model: str, prompt: list[int], answer: int
) -> dict[str, float]:
    """A prompt of token ids and an answer of `answer` tokens, by the lead's clock."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": answer,
        "temperature": 0,
        "ignore_eos": True,
    }
    with wire.connection_errors(str(http.base_url)):
        response = await http.post(COMPLETIONS, json=body)
    wire.check(response)
    timings: dict[str, float] = response.json()["timings"]
    return timings


def _result(
    bench: SplitBench,
    facts: ModelFacts,
    bandwidth: float,
    measured: dict[Split, list[tuple[Round, dict[str, float]]]],
) -> SplitResult:
    base = [rates for rates, _ in next(iter(measured.values()))]  # unsplit

    def of(split: Split) -> Measured:
        rounds = [rates for rates, _ in measured[split]]
        return Measured(
            split=split.name,
            shards=split.shards,
            prompt=median(r.prompt for r in rounds),
            decode=median(r.decode for r in rounds),
            prompt_ratio=median(r.prompt / b.prompt for r, b in zip(rounds, base, strict=True)),
            decode_ratio=median(r.decode / b.decode for r, b in zip(rounds, base, strict=True)),
            wire_bytes=median(t["wire_bytes"] / (bench.answer - 1) for _, t in measured[split]),
            waited=median(t["waited_s"] / t["answer_s"] for _, t in measured[split]),
            rounds=tuple(rounds),
        )

    token = bytes_per_token(facts)
    results = tuple(of(split) for split in measured)
    return SplitResult(
        version=antfarm.__version__,
        machine=machine(),
        model=bench.subject.name,
        bytes_per_token=token,
        read_bandwidth=bandwidth,
        bandwidth_share=token * results[0].decode / bandwidth,
        prompt_tokens=bench.prompt,
        answer_tokens=bench.answer,
        wire=bench.wire,
        splits=results,
    )
