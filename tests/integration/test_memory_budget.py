"""Two hosts of 400 MiB and a model of 592 MiB: refused whole, held as planned when it is split."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.antc import FREE_PORTS, Antc

from antfarm.client import state
from antfarm.model.synthetic import SHAPES, write

MIB = 1 << 20


@pytest.fixture
def billion(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "billion.gguf"
    write(path, SHAPES["llama-1b"], "q4_0")
    yield path
    path.unlink()


def peak(pid: int) -> int:
    """The most resident memory that a process ever had, in bytes."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def ask_for_all(antc: Antc, model: dict[str, Any]) -> None:
    """What takes most memory: every row of one slot, and the most text that is turned to tokens at once."""
    queen = state.read(antc.home).queen()
    assert queen
    with httpx.Client(base_url=queen.api, timeout=200) as http:
        ids = [300 + i % 50 for i in range(model["context"] - 1)]
        full = http.post("/v1/completions", json={"prompt": ids, "max_tokens": 1})
        assert full.json()["usage"]["prompt_tokens"] == len(ids)
        counted = http.post("/tokenize", json={"prompt": "1 " * (MIB // 2)})
        assert counted.json()["count"] >= MIB // 2


@pytest.mark.timeout(300)
def test_a_model_larger_than_each_host_is_held_by_two_within_the_plan(antc: Antc, billion: Path) -> None:
    assert billion.stat().st_size > 590 * MIB
    antc.run("up", "--foragers", "2", "--memory", "400MiB", *FREE_PORTS)

    refused = antc.run("load", billion, "--split", "1", code=1).stderr
    needed = re.search(r"antc: no-capacity: .*?(\d+) MiB.*400 MiB", refused)
    assert needed and int(needed[1]) > 592, refused
    assert all(not node["shards"] for node in antc.json("nodes"))

    antc.run("load", billion, "--split", "2", "--name", "billion")
    answer = antc.json("ask", "Ants", "-m", "billion", "--max-tokens", "8", "--temperature", "0")
    assert answer["usage"]["completion_tokens"] == 8
    ask_for_all(antc, antc.json("ps")[0])
    shards = [shard for node in antc.json("nodes") for shard in node["shards"]]
    assert len(shards) == 2
    for shard in shards:
        assert 300 * MIB < shard["planned"] <= 400 * MIB
        assert peak(shard["pid"]) <= 1.10 * shard["planned"]
