"""Resident memory of every process of a colony, over time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from statistics import median

import msgspec
import psutil

from antfarm.client import state
from antfarm.config import Home

WARM_UP = 0.3  # share of the time after which memory must not grow any more
WINDOW = 0.1  # share of the time whose median counts as "before" and "after"
LEAST = 1 << 20  # bytes; less is an allocator's whim, not a leak


class Resident(msgspec.Struct, frozen=True):
    """One process: bytes after warm-up and at the end."""

    process: str
    before: int
    after: int

    @property
    def growth(self) -> float:
        return self.after / self.before - 1

    def flat(self, within: float) -> bool:
        return self.after - self.before <= max(within * self.before, LEAST)


class Residents:
    """Look again and again with `sample`; `result` compares."""

    def __init__(self, home: Home) -> None:
        self._processes = _family(home)
        self._samples: dict[int, list[tuple[float, int]]] = {pid: [] for pid in self._processes}

    def sample(self) -> None:
        now = time.monotonic()
        for pid, (_, process) in self._processes.items():
            with suppress(psutil.NoSuchProcess):
                self._samples[pid].append((now, process.memory_info().rss))

    def ended(self) -> list[str]:
        """The names of those that do not run any more."""
        return [name for name, process in self._processes.values() if not process.is_running()]

    def result(self) -> tuple[Resident, ...]:
        return tuple(
            compared(name, self._samples[pid])
            for pid, (name, _) in self._processes.items()
            if self._samples[pid]
        )


def compared(process: str, samples: Sequence[tuple[float, int]]) -> Resident:
    """Medians of a window after warm-up, and of the last one. `samples`: (seconds, bytes), in order."""
    first, last = samples[0][0], samples[-1][0]
    window = (last - first) * WINDOW
    warm = first + (last - first) * WARM_UP
    before = [size for at, size in samples if warm <= at <= warm + window]
    after = [size for at, size in samples if at >= last - window]
    return Resident(process, int(median(before or after)), int(median(after)))


def _family(home: Home) -> dict[int, tuple[str, psutil.Process]]:
    """The colony's processes and all their children, by id and with a name."""
    found: dict[int, tuple[str, psutil.Process]] = {}
    for member in state.read(home).processes:
        if process := member.running():
            name = member.name or member.role
            found[process.pid] = (name, process)
            for child in process.children(recursive=True):
                what = "shard" if "antfarm.shard" in child.cmdline() else child.name()
                found[child.pid] = (f"{name}'s {what} {child.pid}", child)
    return found
