"""A colony that nobody asks anything costs next to nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence

import psutil
from support.antc import FREE_PORTS, Antc
from support.models import Models

SETTLE_S = 3.0
WATCHED_S = 6.0
LOOKS = 3  # what else runs on the machine only adds to what is used: the least of them counts
SHARE = 0.02  # of one core


def computed(processes: Sequence[psutil.Process]) -> float:
    """Seconds of one core that these processes have used so far."""
    if sys.platform == "linux":  # the clocks of clock_getcpuclockid(3); what psutil reads are ticks of 10 ms
        return sum(time.clock_gettime(~process.pid << 3 | 2) for process in processes)
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def shares(processes: Sequence[psutil.Process]) -> Iterator[float]:
    """How much of a core they use while each look lasts."""
    for _ in range(LOOKS):
        began, before = time.monotonic(), computed(processes)
        time.sleep(WATCHED_S)
        yield (computed(processes) - before) / (time.monotonic() - began)


def test_an_idle_colony_takes_less_than_two_percent_of_a_core(
    antc: Antc, models: Models, record_property: Callable[[str, object], None]
) -> None:
    antc.run("up", "--foragers", "2", "--model", models.path("tiny-llama"), "--split", "2", *FREE_PORTS)
    antc.run("ask", "Hello?", "--max-tokens", "4")
    processes = antc.processes()
    assert len(processes) >= 6, "a queen, her bus, two foragers, two shards"
    time.sleep(SETTLE_S)  # what follows an answer: statistics, heartbeats
    least = 1.0
    for share in shares(processes):
        least = min(least, share)
        if least < SHARE:
            break
    record_property("share of a core", least)
    assert 0 < least < SHARE
