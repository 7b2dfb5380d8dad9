"""`antc bench` on small models: against a colony, against llama.cpp's server, and in private colonies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import xllamacpp
from support.antc import FREE_PORTS, Antc, alive, eventually
from support.forager_process import is_shard
from support.models import Models

from antfarm.bench.mix import Mix, Spread, work

MIX = ("--prompt-tokens", "20:100", "--answer-tokens", "16:32", "--seed", "5")
TINY = ("--shape", "tiny-llama", "--quant", "q8_0")


@pytest.fixture(scope="module")
def llama_cpp(models: Models) -> Iterator[str]:
    """The URL of llama.cpp's own server, with four slots."""
    params = xllamacpp.CommonParams()
    params.model.path = str(models.path("tiny-llama"))
    params.n_ctx = 4 * 512
    params.n_parallel = 4
    params.warmup = False
    params.fit_params = False
    params.verbosity = 0
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 8
    server = xllamacpp.Server(params)
    yield f"{server.listening_address}/v1"
    del server


def sums(requests: int) -> tuple[int, int]:
    """Prompt and answer tokens of the first requests of `MIX`."""
    todo = [work(Mix(Spread(20, 100), Spread(16, 32), seed=5), n) for n in range(requests)]
    return sum(w.prompt for w in todo), sum(w.answer for w in todo)


def in_order(*quantiles: dict[str, float]) -> bool:
    return all(0 < q["p50"] <= q["p95"] <= q["p99"] <= q["max"] for q in quantiles)


def test_another_server_is_measured_token_by_token(antc: Antc, llama_cpp: str) -> None:
    result = antc.json("bench", "serve", "--url", llama_cpp, "--streams", "4", "--requests", "12", *MIX)
    traffic = result["traffic"]
    assert (traffic["requests"], traffic["answered"], traffic["errors"]) == (12, 12, {})
    assert (traffic["prompt_tokens"], traffic["answer_tokens"]) == sums(12)
    assert result["counted"] and result["ignores_eos"]
    assert traffic["answer_rate"] == pytest.approx(traffic["answer_tokens"] / traffic["seconds"])
    assert in_order(traffic["first_token"], traffic["gap"], traffic["latency"])
    assert traffic["first_token"]["count"] == traffic["latency"]["count"] == 12

    cut = antc.json("bench", "serve", "--url", llama_cpp, "--duration", "1", "--cancel", "0.3", *MIX)
    assert cut["traffic"]["seconds"] < 3 and not cut["traffic"]["errors"]
    assert cut["traffic"]["answered"] > 8 and cut["traffic"]["cancelled"] > 0

    page = antc.run("bench", "serve", "--url", llama_cpp, "--prompt-tokens", "600", "--requests", "2", code=1)
    assert "| 400 exceed_context_size_error | 2 |" in page.stdout


def test_the_colony_of_this_home_is_measured(antc: Antc, models: Models, tmp_path: Path) -> None:
    path = models.path("tiny-llama")
    antc.run("up", "--model", path, *FREE_PORTS, "--api-key", "a-key-of-the-tests")
    out = tmp_path / "pages" / "serve"
    told = antc.run("bench", "serve", "--streams", "3", "--requests", "9", *MIX, "--out", out)
    result = json.loads(out.with_suffix(".json").read_text())
    assert (result["traffic"]["prompt_tokens"], result["traffic"]["answer_tokens"]) == sums(9)
    assert out.with_suffix(".md").read_text().strip() == told.stdout.strip()
    assert "| 9 | 9 | 0 | 0 | 0 |" in told.stdout

    talk = ("--chat-turns", "3", "--requests", "2", "--prompt-tokens", "40", "--answer-tokens", "8")
    chat = antc.json("bench", "serve", "--streams", "2", *talk)["traffic"]
    assert (chat["requests"], chat["answered"], chat["answer_tokens"], len(chat["turns"])) == (6, 6, 48, 3)
    alone = antc.json("bench", "serve", "--chat-turns", "1", *talk[2:])["traffic"]
    assert alone["prompt_tokens"] / 2 == pytest.approx(40, rel=0.5), "words are measured in tokens first"
    assert chat["prompt_tokens"] / 2 > 2 * alone["prompt_tokens"], "each turn holds those before it"


def test_a_benchmark_that_is_killed_leaves_nothing_running(
    antc: Antc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where its files stay
    bench = antc.start("bench", "soak", *TINY, "--minutes", "5", "--clients", "3")
    watched = psutil.Process(bench.pid)

    def shards() -> list[psutil.Process]:
        family = watched.children(recursive=True)
        return family if sum(map(is_shard, family)) >= 2 else []

    family = eventually(shards, "shards of the private colony run")
    bench.kill()
    eventually(lambda: not any(map(alive, family)), "all of it has ended")


def test_an_endpoint_that_is_not_there_is_one_clear_error(antc: Antc) -> None:
    gone = antc.run("bench", "serve", "--url", "http://127.0.0.1:9/v1", code=1)
    assert gone.stderr.startswith("antc: colony-down:")
    assert antc.run("bench", "serve", code=1).stderr.startswith("antc: colony-down:")
    assert antc.run("bench", "serve", "--prompt-tokens", "9:1", code=2).returncode == 2


def test_scenarios_of_many_at_once(antc: Antc) -> None:
    sizes = (
        "--streams",
        "3",
        "--answer",
        "32",
        "--disturbed",
        "2",
        "--long-prompt",
        "250",
        "--history",
        "150",
    )
    result = antc.json("bench", "batch", *TINY, *sizes, "--rounds", "1")
    figures = {(f["scenario"], f["name"]): f["value"] for f in result["figures"]}
    assert all(value > 0 for (_, name), value in figures.items() if "cache" not in name)
    assert {scenario for scenario, _ in figures} == {"streams", "disturbance", "prompt", "chat"}
    for split in ("tensor 2", "pipeline 2"):
        ratio = figures["streams", f"{split}, 3 streams"] / figures["streams", "unsplit, 3 streams"]
        assert figures["streams", f"{split} to unsplit, 3 streams"] == pytest.approx(ratio)
    assert 100 < figures["chat", "first turn, prompt"] < 200
    assert figures["chat", "second turn, prompt"] > figures["chat", "first turn, prompt"]
    assert "streams, disturbance" in antc.run("bench", "batch", "--only", "nothing", code=2).stderr


def test_a_short_soak_finds_a_sound_colony(antc: Antc) -> None:
    """Memory has not settled after so short a time; that everything is looked at is what counts here."""
    result = antc.json("bench", "soak", *TINY, "--minutes", "0.2", "--clients", "9", "--growth", "0.5")
    assert all(check["passed"] for check in result["checks"]), result["checks"]
    assert set(result["traffic"]) == {"unsplit", "tensor 2", "pipeline 2"}
    assert all(t["answered"] > 0 and not t["errors"] for t in result["traffic"].values())
    assert sum(t["cancelled"] for t in result["traffic"].values()) > 0
    names = [resident["process"] for resident in result["residents"]]
    assert {"queen", "host-1", "host-2"} <= set(names)
    assert sum("shard" in name for name in names) == 5 and any("nats" in name for name in names)


def test_splits_side_by_side(antc: Antc, tmp_path: Path) -> None:
    out = tmp_path / "pages" / "split"
    sizes = ("--rounds", "1", "--prompt", "32", "--answer", "16")
    told = antc.run("bench", "split", *TINY, *sizes, "--out", out)
    assert out.with_suffix(".md").read_text().strip() == told.stdout.strip()
    assert "| unsplit |" in told.stdout and "| tensor 2 |" in told.stdout
    result = json.loads(out.with_suffix(".json").read_text())
    by_name: dict[str, dict[str, Any]] = {split["split"]: split for split in result["splits"]}
    assert list(by_name) == ["unsplit", "tensor 2", "pipeline 2"]
    unsplit, tensor = by_name["unsplit"], by_name["tensor 2"]
    assert (unsplit["prompt_ratio"], unsplit["wire_bytes"]) == (1, 0)
    assert tensor["decode_ratio"] == pytest.approx(tensor["decode"] / unsplit["decode"])
    assert tensor["wire_bytes"] > by_name["pipeline 2"]["wire_bytes"] > 0
