"""`antc bench split`: one model unsplit, tensor-split and pipeline-split, in one run.

A private colony is started with one forager a core. All splits are loaded at once and take turns,
round by round, so that whatever else the machine does falls on all of them alike; a ratio is
taken within a round, and the median over the rounds counts.
"""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
import msgspec

import antfarm
from antfarm.bench.memory import read_bandwidth
from antfarm.client import launch, wire
from antfarm.client.answers import api_of
from antfarm.client.control import Control
from antfarm.config import Home
from antfarm.errors import Reason, StateError
from antfarm.messages import LoadModel
from antfarm.model.gguf import GgufFile
from antfarm.model.synthetic import QUANTS, SHAPES, write
from antfarm.types import ModelFacts, RunOptions, WireFormat

UNSPLIT = "unsplit"


@dataclass(frozen=True)
class SplitBench:
    """What to measure. `model` is a GGUF file or a catalog name; empty makes `shape` in `quant`."""

    model: str = ""
    shape: str = "llama-1b"
    quant: str = "q4_0"
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


def run(bench: SplitBench, say: Callable[[str], None]) -> SplitResult:
    """Measure. Takes a minute or two; `say` is told what happens. Raises what loading raises, and
    `bad-setting` when this machine has fewer cores than hosts are asked for."""
    cores = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    if len(cores) < bench.hosts:
        raise StateError(
            Reason.BAD_SETTING,
            f"{bench.hosts} hosts need a core each, and this machine has {len(cores)}",
            hint="choose a smaller --hosts",
        )
    with tempfile.TemporaryDirectory(prefix="antfarm-bench-") as folder:
        path = _model(bench, Path(folder), say)
        with GgufFile.open(path) as file:
            facts = file.facts
        say("measuring how fast one core reads memory")
        bandwidth = read_bandwidth(cores[0])
        home = Home(Path(folder) / "home")
        foragers = [
            launch.ForagerOptions(f"host-{n}", threads=1, cpus=(core,), memory=4 * facts.bytes + (4 << 30))
            for n, core in enumerate(cores[: bench.hosts], 1)
        ]
        say(f"starting a colony of {bench.hosts} foragers, one core each")
        launch.start_colony(home, launch.QueenOptions(api_port=0, bus_port=0), foragers)
        try:
            splits = asyncio.run(_measure(bench, home, path, say))
        finally:
            launch.stop_colony(home)
    return _result(bench, facts, bandwidth, splits)


def bytes_per_token(facts: ModelFacts) -> int:
    """Weight bytes that decoding one token reads: all but the embedding, of which it reads a row,
    unless that is the output head as well."""
    tied = not any(tensor.name == "output.weight" for tensor in facts.tensors)
    return sum(t.bytes for t in facts.tensors if tied or t.name != "token_embd.weight")


def _model(bench: SplitBench, folder: Path, say: Callable[[str], None]) -> Path:
    if bench.model:
        from antfarm.model.catalog import Catalog

        return Catalog(Home.find().models).resolve(bench.model)
    if bench.shape not in SHAPES or bench.quant not in QUANTS:
        raise StateError(
            Reason.BAD_SETTING,
            f"no synthetic model {bench.shape} {bench.quant}",
            hint=f"shapes: {', '.join(SHAPES)}; quantizations: {', '.join(QUANTS)}",
        )
    say(f"writing a synthetic {bench.shape} in {bench.quant}")
    path = folder / f"{bench.shape}-{bench.quant}.gguf"
    write(path, SHAPES[bench.shape], bench.quant)
    return path


async def _measure(
    bench: SplitBench, home: Home, path: Path, say: Callable[[str], None]
) -> dict[str, list[tuple[Round, dict[str, float]]]]:
    wanted = {UNSPLIT: ("auto", 1)}
    if bench.hosts > 1:
        wanted |= {f"{mode} {bench.hosts}": (mode, bench.hosts) for mode in ("tensor", "pipeline")}
    async with await Control.connect(home) as control:
        for name, (mode, shards) in wanted.items():
            say(f"loading it {name}")
            options = RunOptions(context=bench.prompt + bench.answer + 1, wire=bench.wire)
            await _load(control, LoadModel(str(path), name.replace(" ", "-"), shards, mode, options=options))
    measured: dict[str, list[tuple[Round, dict[str, float]]]] = {name: [] for name in wanted}
    url, key = api_of(home)
    async with httpx.AsyncClient(**wire.options(url, key)) as http:
        for number in range(bench.rounds + 1):  # the first one warms up
            say(f"round {number} of {bench.rounds}" if number else "warming up")
            for name in wanted:
                timings = await _ask(http, name.replace(" ", "-"), bench)
                if number:
                    rates = Round(timings["prompt_tokens_per_second"], timings["answer_tokens_per_second"])
                    measured[name].append((rates, timings))
    return measured


async def _load(control: Control, wanted: LoadModel) -> None:
    asked = await control.load(wanted)
    async for _ in control.watch(asked.model):
        pass


async def _ask(http: httpx.AsyncClient, model: str, bench: SplitBench) -> dict[str, float]:
    body = {
        "model": model,
        "prompt": [1 + n % 200 for n in range(bench.prompt)],
        "max_tokens": bench.answer,
        "temperature": 0,
        "ignore_eos": True,
    }
    response = await http.post("/v1/completions", json=body)
    wire.check(response)
    timings: dict[str, float] = response.json()["timings"]
    return timings


def _result(
    bench: SplitBench,
    facts: ModelFacts,
    bandwidth: float,
    splits: dict[str, list[tuple[Round, dict[str, float]]]],
) -> SplitResult:
    base = [rates for rates, _ in splits[UNSPLIT]]

    def measured(name: str) -> Measured:
        rounds = [rates for rates, _ in splits[name]]
        return Measured(
            split=name,
            shards=1 if name == UNSPLIT else bench.hosts,
            prompt=median(r.prompt for r in rounds),
            decode=median(r.decode for r in rounds),
            prompt_ratio=median(r.prompt / b.prompt for r, b in zip(rounds, base, strict=True)),
            decode_ratio=median(r.decode / b.decode for r, b in zip(rounds, base, strict=True)),
            wire_bytes=median(t["wire_bytes"] / (bench.answer - 1) for _, t in splits[name]),
            waited=median(t["waited_s"] / t["answer_s"] for _, t in splits[name]),
            rounds=tuple(rounds),
        )

    token = bytes_per_token(facts)
    results = tuple(measured(name) for name in splits)
    return SplitResult(
        version=antfarm.__version__,
        machine=f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        model=bench.model or f"{bench.shape} {bench.quant}",
        bytes_per_token=token,
        read_bandwidth=bandwidth,
        bandwidth_share=token * results[0].decode / bandwidth,
        prompt_tokens=bench.prompt,
        answer_tokens=bench.answer,
        wire=bench.wire,
        splits=results,
    )
