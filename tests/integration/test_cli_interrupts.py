"""Ctrl-C while something goes on: it ends, quietly, and holds nothing any more."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.antc import FREE_PORTS, Antc, eventually
from support.file_server import FileServer
from support.models import Models
from support.starts import Starts
from support.terminal import in_a_terminal

from antfarm.client import state
from antfarm.model.synthetic import Shape, write

INTERRUPTED = 130


@pytest.fixture
def talkative(antc: Antc, tmp_path: Path) -> Antc:
    """A colony with one slot, whose model talks for a long while: its tokens rarely are one that ends."""
    path = tmp_path / "talkative.gguf"
    write(path, Shape("llama", 4, 96, 224, 6, 3, 16000, head_dim=32), "f32")
    antc.run("up", "--model", path, "--name", "tiny", "--context", "32768", "--slots", "1", *FREE_PORTS)
    return antc


@pytest.fixture
def stalled(models: Models) -> Iterator[FileServer]:
    """A server that has sent half a model and keeps its client waiting."""
    server = FileServer(models.path("tiny-qwen2").read_bytes())
    server.stall_from_now()
    yield server
    server.close()


def assert_slot_is_free(antc: Antc) -> None:
    eventually(lambda: antc.json("top")["models"][0]["running"] == 0, "the answer has ended")
    assert antc.json("ask", "Hello?", "--max-tokens", "4")["usage"]["completion_tokens"] > 0


def half_file(antc: Antc, server: FileServer, process: subprocess.Popen[str]) -> Path:
    """The unfinished download, when everything that was sent is in it."""
    assert server.half_sent.wait(30), process.poll()

    def held() -> list[Path]:
        return [p for p in antc.home.models.glob("*.part") if p.stat().st_size >= len(server.content) // 4]

    found: list[Path] = eventually(held, "half of the file is here")
    return found[0]


def test_an_answer(talkative: Antc) -> None:
    ask = talkative.start("ask", "Hello?", "--temperature", "0")
    assert ask.stdout is not None and len(ask.stdout.read(20)) == 20
    eventually(lambda: talkative.json("top")["models"][0]["running"] == 1, "the lead has told of it")
    told = talkative.finish(ask, signal.SIGINT, INTERRUPTED)
    assert "Traceback" not in told
    assert_slot_is_free(talkative)


def test_an_answer_of_a_conversation_which_goes_on(talkative: Antc) -> None:
    shown, code = in_a_terminal(
        talkative.command("chat", "--temperature", "0"),
        (rb"> ", b"Hello?\r"),
        (rb"Hello\?\s+\S.{40}", b"\x03"),
        (rb"\(stopped\).*> ", b"And now?\r"),
        (rb"And now\?\s+\S.{40}", b"\x03"),
        (rb"\(stopped\).*> ", b"\x04"),
    )
    assert (shown.count(b"(stopped)"), code) == (2, 0)
    assert b"Traceback" not in shown
    assert_slot_is_free(talkative)


def test_a_load_of_which_what_was_measured_is_told(talkative: Antc, tmp_path: Path) -> None:
    out = tmp_path / "load"
    lengths = ("--prompt-tokens", "8", "--answer-tokens", "30000")
    bench = talkative.start("bench", "serve", "--streams", "2", *lengths, "--out", out)
    eventually(lambda: talkative.json("top")["models"][0]["queued"] == 1, "both ask, and one is answered")
    told = talkative.finish(bench, signal.SIGINT, INTERRUPTED)
    assert "2 streams, interrupted" in told and "Traceback" not in told
    result = json.loads(out.with_suffix(".json").read_text())
    traffic = result["traffic"]
    assert result["interrupted"] and (traffic["requests"], traffic["cut"]) == (2, 2)
    assert 0 < traffic["answer_tokens"] < 30000 and traffic["errors"] == {}
    assert_slot_is_free(talkative)


def test_up_while_its_model_loads(antc: Antc, models: Models, starts: Starts) -> None:
    model = models.path("tiny-llama")
    with starts.held("antfarm.shard"):
        up = antc.start("up", "--foragers", "2", "--model", model, "--split", "2", *FREE_PORTS)
        assert up.stdout is not None
        for line in up.stdout:
            if " shard 0 on " in line:
                break
        told = antc.finish(up, signal.SIGINT, INTERRUPTED)
    assert "taking the colony down again" in told and "is ready" not in told and "Traceback" not in told
    assert antc.processes() == []
    assert state.read(antc.home).processes == ()


def test_up_while_its_model_is_fetched(antc: Antc, stalled: FileServer) -> None:
    up = antc.start("up", "--model", stalled.url, *FREE_PORTS)
    half_file(antc, stalled, up)
    assert "Traceback" not in antc.finish(up, signal.SIGINT, INTERRUPTED)
    assert antc.processes() == []


def test_a_download_which_goes_on_where_it_stopped(antc: Antc, stalled: FileServer) -> None:
    pull = antc.start("pull", stalled.url)
    part = half_file(antc, stalled, pull)
    assert "Traceback" not in antc.finish(pull, signal.SIGINT, INTERRUPTED)
    held = part.stat().st_size
    assert 0 < held < len(stalled.content)
    stalled.go_on()
    path = Path(antc.run("pull", stalled.url).stdout.strip())
    assert path.read_bytes() == stalled.content
    assert stalled.asked == [None, f"bytes={held}-"]
    assert not part.exists()
