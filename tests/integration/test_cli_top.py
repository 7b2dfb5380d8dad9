"""`antc load --replicas`, `antc ps` and `antc top` from outside, and `/metrics` behind the key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.antc import FREE_PORTS, Antc, eventually
from support.models import Models
from support.terminal import in_a_terminal

from antfarm.client import state

KEY = "an-api-key-of-the-tests"


@pytest.fixture(scope="module")
def antc(tmp_path_factory: pytest.TempPathFactory, models: Models) -> Iterator[Antc]:
    """Two foragers, with a replica of a model on each."""
    made = Antc(tmp_path_factory.mktemp("colony"))
    try:
        made.run("up", "--foragers", "2", *FREE_PORTS, "--api-key", KEY)
        loaded = made.run("load", models.path("tiny-llama"), "--name", "tiny", "--replicas", "2")
        assert "tiny is ready: 2 replicas, each unsplit" in loaded.stdout
        yield made
    finally:
        left = made.close()
    assert not left, f"left running: {left}"


def test_ps_shows_each_replica(antc: Antc) -> None:
    replicas = antc.json("ps")
    assert [(one["model"], one["replica"], one["state"]) for one in replicas] == [
        ("tiny", "tiny-1", "ready"),
        ("tiny", "tiny-2", "ready"),
    ]
    assert {shard["forager"] for one in replicas for shard in one["shards"]} == {"forager-1", "forager-2"}
    assert re.search(r"^tiny +tiny-2 +ready", antc.run("ps").stdout, re.MULTILINE)
    (model,) = [row for row in antc.json("models") if row["state"]]
    assert (model["model"], model["state"]) == ("tiny", "ready")


def test_replicas_that_find_no_foragers_are_refused(antc: Antc, models: Models) -> None:
    other = ("load", models.path("tiny-qwen2"), "--name", "other", "--replicas")
    assert antc.run(*other, "3", code=1).stderr.startswith("antc: no-capacity: 3 replicas need")
    refused = antc.run(*other, "2", "--split", "2", code=1)
    assert "antc: no-capacity:" in refused.stderr and "hold other replicas" in refused.stderr
    antc.run("unload", "other", code=1)


def test_top_shows_what_was_done(antc: Antc) -> None:
    antc.run("ask", "Hello?", "--max-tokens", "8")

    def told() -> bool:
        seen = antc.json("top")
        idle = seen["shards"][0]["kv"] is not None and seen["models"][0]["running"] == 0
        return idle and all(shard["resident"] > 0 for shard in seen["shards"])

    eventually(told, "the lead has told its counters, and the foragers their memory")
    seen = antc.json("top", "--once")
    assert seen["seconds"] > 1 and seen["foragers"] == 2
    (model,) = seen["models"]
    assert (model["model"], model["state"], model["ready"], model["replicas"]) == ("tiny", "ready", 2, 2)
    assert (model["running"], model["queued"]) == (0, 0)
    assert model["first_token"] > 0 and model["next_token"] > 0
    assert [(shard["replica"], shard["forager"]) for shard in seen["shards"]] == [
        ("tiny-1", "forager-1"),
        ("tiny-2", "forager-2"),
    ]
    assert all(shard["resident"] > 0 for shard in seen["shards"])
    piped = antc.run("top").stdout  # no terminal: once
    assert "\x1b" not in piped and re.search(r"^tiny +ready +2/2 ", piped, re.MULTILINE)


@pytest.mark.parametrize("leave", [b"q", b"\x03"])
def test_top_in_a_terminal_refreshes_until_it_is_left(antc: Antc, leave: bytes) -> None:
    shown, code = in_a_terminal(antc.command("top"), (rb"rates over 2 s", leave))
    assert shown.count(b"tiny-2") >= 2
    assert shown.rstrip().endswith(b"\x1b[?1049l"), "the terminal is as it was"
    assert code == 0


def test_metrics_ask_for_the_key(antc: Antc) -> None:
    queen = state.read(antc.home).queen()
    assert queen is not None
    with httpx.Client(base_url=queen.api) as http:
        assert http.get("/metrics").status_code == 401
        page = http.get("/metrics", headers={"Authorization": f"Bearer {KEY}"})
    assert page.status_code == 200
    assert 'antfarm_replica_ready{model="tiny",replica="tiny-1"} 1.0' in page.text


def test_top_without_a_colony_or_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = Antc(tmp_path)
    assert nobody.run("top", code=1).stderr.startswith("antc: colony-down:")
    try:
        nobody.run("up", *FREE_PORTS)
        done = nobody.run("top", "--once")
        assert "1 forager;" in done.stdout and "no model is loaded" in done.stderr
        assert json.loads(nobody.run("top", "--json").stdout)["models"] == []
        monkeypatch.setenv("FORCE_COLOR", "1")  # makes no terminal of a pipe
        assert "1 forager;" in nobody.run("top").stdout
    finally:
        assert not nobody.close()
