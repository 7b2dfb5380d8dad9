"""A private colony for a benchmark: one forager a core, one model, split in several ways side by side."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from antfarm.client import launch
from antfarm.client.control import Control
from antfarm.config import Home
from antfarm.errors import Reason, StateError
from antfarm.messages import LoadModel
from antfarm.model.catalog import Catalog
from antfarm.model.gguf import GgufFile
from antfarm.model.synthetic import QUANTS, SHAPES, write
from antfarm.types import ModelFacts, RunOptions

UNSPLIT = "unsplit"
ROOM = 4 << 30  # bytes a forager may use besides four times the model's weights

Say = Callable[[str], None]
"""Told what happens, a line at a time."""


@dataclass(frozen=True)
class Subject:
    """The model to measure: a GGUF file, or the name of one in `home`. Empty makes a synthetic `shape` in
    `quant`."""

    model: str = ""
    shape: str = "llama-1b"
    quant: str = "q4_0"
    home: Home = field(default_factory=Home.find)

    @property
    def name(self) -> str:
        return self.model or f"{self.shape} {self.quant}"


@dataclass(frozen=True)
class Split:
    """One way to cut the model. `served` is the name it is asked under."""

    name: str
    mode: str
    shards: int

    @property
    def served(self) -> str:
        return self.name.replace(" ", "-")


def splits(hosts: int) -> tuple[Split, ...]:
    """The unsplit model first, then what `hosts` hosts allow."""
    modes = ("tensor", "pipeline") if hosts > 1 else ()
    return (Split(UNSPLIT, "auto", 1), *(Split(f"{mode} {hosts}", mode, hosts) for mode in modes))


def cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def check_hosts(hosts: int) -> None:
    """Raises `bad-setting` when this machine has fewer cores than that."""
    if hosts > (own := len(cores())):
        raise StateError(
            Reason.BAD_SETTING,
            f"{hosts} hosts need a core each, and this machine has {own}",
            hint="choose a smaller --hosts",
        )


def machine() -> str:
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


@contextmanager
def model_file(subject: Subject, say: Say) -> Iterator[tuple[Path, ModelFacts]]:
    """The model's file; a synthetic one is gone with the block. Raises `model-unknown`, `bad-setting`."""
    with tempfile.TemporaryDirectory(prefix="antfarm-bench-") as folder:
        path = _resolve(subject, Path(folder), say)
        with GgufFile.open(path) as file:
            facts = file.facts
        yield path, facts


@contextmanager
def private_colony(hosts: int, facts: ModelFacts, say: Say) -> Iterator[Home]:
    """A colony of `hosts` foragers, each pinned to a core of its own; ended with the block."""
    memory = min(4 * facts.bytes + ROOM, psutil.virtual_memory().total)
    foragers = [
        launch.ForagerOptions(f"host-{n}", threads=1, cpus=(core,), memory=memory)
        for n, core in enumerate(cores()[:hosts], 1)
    ]
    with tempfile.TemporaryDirectory(prefix="antfarm-bench-") as folder:
        home = Home(Path(folder))
        say(f"starting a colony of {hosts} foragers, one core each")
        with launch.own_colony(home, launch.QueenOptions(api_port=0, bus_port=0), foragers):
            yield home


async def load(home: Home, path: Path, wanted: Mapping[Split, RunOptions], say: Say) -> None:
    """Load the model once for each split, side by side. Raises what loading raises."""
    async with await Control.connect(home) as control:
        for split, options in wanted.items():
            say(f"loading it {split.name}")
            await control.load(LoadModel(str(path), split.served, split.shards, split.mode, options=options))
            async for _ in control.watch(split.served):
                pass


def _resolve(subject: Subject, folder: Path, say: Say) -> Path:
    if subject.model:
        return Catalog(subject.home.models).resolve(subject.model)
    if subject.shape not in SHAPES or subject.quant not in QUANTS:
        raise StateError(
            Reason.BAD_SETTING,
            f"no synthetic model {subject.shape} {subject.quant}",
            hint=f"shapes: {', '.join(SHAPES)}; quantizations: {', '.join(QUANTS)}",
        )
    say(f"writing a synthetic {subject.shape} in {subject.quant}")
    path = folder / f"{subject.shape}-{subject.quant}.gguf"
    write(path, SHAPES[subject.shape], subject.quant)
    return path
