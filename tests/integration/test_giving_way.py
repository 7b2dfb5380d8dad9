"""Daemons give way to the shards that compute beside them, and keep to the cores that they were given."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil
import pytest
from support.antc import FREE_PORTS, Antc, eventually
from support.models import Models

from antfarm.client import state


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a matter of Linux")
def test_a_forager_and_its_shards_keep_to_their_cores(antc: Antc, models: Models) -> None:
    cpu = max(os.sched_getaffinity(0))
    antc.start("queen", *FREE_PORTS)
    eventually(lambda: state.read(antc.home).on_bus(), "the queen is up")
    refused = antc.run("forager", "--name", "nowhere", "--cpus", "4096", code=1)
    assert refused.stderr.startswith("antc: bad-setting: this host has no core 4096")
    started = antc.start("forager", "--name", "pinned", "--cpus", str(cpu))
    (node,) = eventually(lambda: antc.json("nodes"), "the forager has joined")
    assert node["threads"] == 1
    antc.run("load", models.path("tiny-llama"))
    forager = psutil.Process(started.pid)
    shards = [p for p in forager.children() if "antfarm.shard" in p.cmdline()]
    assert shards
    for process in (forager, *shards):
        assert cores_of(process) == {frozenset({cpu})}


def cores_of(process: psutil.Process) -> set[frozenset[int]]:
    """What its threads keep to."""
    found = set()
    for thread in process.threads():
        with suppress(ProcessLookupError):  # one that ends meanwhile
            found.add(frozenset(os.sched_getaffinity(thread.id)))
    return found


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a matter of Linux")
def test_daemons_give_way_and_shards_do_not(antc: Antc, models: Models) -> None:
    antc.run("up", "--model", models.path("tiny-llama"), *FREE_PORTS)
    policies = {" ".join(p.cmdline()): os.sched_getscheduler(p.pid) for p in antc.processes()}
    shards = {line: policy for line, policy in policies.items() if "antfarm.shard" in line}
    assert shards and set(shards.values()) == {os.SCHED_OTHER}
    daemons = {policy for line, policy in policies.items() if line not in shards}
    assert daemons == {os.SCHED_BATCH}
    assert any("nats-server" in line for line in policies)
