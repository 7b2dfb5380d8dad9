"""How fast one core reads memory: the wall that decoding runs against."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

BLOCK = 512 << 20  # bytes; far larger than any cache


def read_bandwidth(cpu: int, repeats: int = 5) -> float:
    """Bytes a second that one core reads, the best of some passes over 512 MiB.

    The C library's memchr for a byte that is not there does nothing but read, with vector loads.
    """
    memchr = ctypes.CDLL(None).memchr
    memchr.restype = ctypes.c_void_p
    memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    data = np.ones(BLOCK, np.uint8)
    best = float("inf")
    with pinned({cpu}):
        for _ in range(repeats):
            began = time.perf_counter()
            memchr(data.ctypes.data, 0, BLOCK)
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
