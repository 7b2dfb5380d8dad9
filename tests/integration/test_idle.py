"""A colony that nobody asks anything costs next to nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil
from support.antc import FREE_PORTS, Antc
from support.models import Models

SETTLE_S = 3.0
WATCHED_S = 6.0
SHARE = 0.02  # of one core
NOISE_S = 0.05  # clock ticks of 10 ms, of each of the processes


def computed(processes: Sequence[psutil.Process]) -> float:
    """Seconds of one core that these processes have used so far."""
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def test_an_idle_colony_takes_less_than_two_percent_of_a_core(antc: Antc, models: Models) -> None:
    antc.run("up", "--foragers", "2", "--model", models.path("tiny-llama"), "--split", "2", *FREE_PORTS)
    antc.run("ask", "Hello?", "--max-tokens", "4")
    processes = antc.processes()
    assert len(processes) >= 6, "a queen, her bus, two foragers, two shards"
    time.sleep(SETTLE_S)  # what follows an answer: statistics, heartbeats
    began, before = time.monotonic(), computed(processes)
    time.sleep(WATCHED_S)
    used, elapsed = computed(processes) - before, time.monotonic() - began
    assert used < SHARE * elapsed + NOISE_S, f"{used / elapsed:.1%} of a core"
