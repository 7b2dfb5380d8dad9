"""Daemons give way to the shards that compute beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.antc import FREE_PORTS, Antc
from support.models import Models


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a matter of Linux")
def test_daemons_give_way_and_shards_do_not(tmp_path: Path, models: Models) -> None:
    antc = Antc(tmp_path / "colony")
    try:
        antc.run("up", "--model", models.path("tiny-llama"), *FREE_PORTS)
        policies = {" ".join(p.cmdline()): os.sched_getscheduler(p.pid) for p in antc.processes()}
        shards = {line: policy for line, policy in policies.items() if "antfarm.shard" in line}
        assert shards and set(shards.values()) == {os.SCHED_OTHER}
        daemons = {policy for line, policy in policies.items() if line not in shards}
        assert daemons == {os.SCHED_BATCH}
        assert any("nats-server" in line for line in policies)
    finally:
        assert not antc.close()
