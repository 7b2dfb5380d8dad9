"""A process that hangs: stopped, with its connections open."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STOPPED_S = 20.0


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """In this block the process does nothing."""
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def stop(pid: int) -> None:
    """Returns when every thread stands still: on another core one runs on a little after the signal."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _STOPPED_S
    while any(state != "T" for state in _states(pid)):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.001)


def _states(pid: int) -> list[str]:
    """Of each thread, the letter that Linux has for it; it follows the name, which is in parentheses."""
    stats = []
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends before it stands still
            stats.append(path.read_text())
    return [stat.rpartition(")")[2].split()[0] for stat in stats]
