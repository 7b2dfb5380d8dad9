"""How fast one core reads memory: the wall that decoding runs against."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

BLOCK = 512 << 20  # bytes; far larger than any cache


def read_bandwidth(cpu: int, repeats: int = 5) -> float:
    """Bytes a second that one core reads, the best of some passes over 512 MiB.

    A pass adds up numbers, the least work that looks at each of them. A bare search for a byte, which
    does not even that, is up to a third faster on processors with wide vectors.
    """
    data = np.ones(BLOCK // 4, np.float32)
    best = float("inf")
    with pinned({cpu}):
        for _ in range(repeats):
            began = time.perf_counter()
            data.sum()
            best = min(best, time.perf_counter() - began)
    return BLOCK / best


@contextmanager
def pinned(cpus: Iterable[int]) -> Iterator[None]:
    """Keep this thread on `cpus` while the block runs, where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
