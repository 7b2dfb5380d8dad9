"""`antc` from outside: real processes, a small random model, free ports."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from support.antc import FREE_PORTS, Antc, eventually, shown_by_the_system
from support.colony import TOKEN, stock_server
from support.models import Models
from support.starts import Starts

from antfarm.client import state

KEY = "an-api-key-of-the-tests"
REFUSED = re.compile("^antc: bus-unauthorized", re.MULTILINE)
# Every Python runs it before its program.
NOTES_BINDS = """
import os, sys

def note(event, values):
    if event == "socket.bind" and isinstance(values[1], tuple):
        with open({path!r}, "a") as file:
            print(os.getpid(), values[1][0], file=file)

sys.addaudithook(note)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Callable[[str], Antc]]:
    """Homes by name; nothing may be left running in any of them."""
    made: dict[str, Antc] = {}

    def named(name: str) -> Antc:
        return made.setdefault(name, Antc(tmp_path / name))

    yield named
    for antc in made.values():
        left = antc.close()
        assert not left, f"left running: {left}"


@pytest.fixture
def antc(home: Callable[[str], Antc]) -> Antc:
    return home("colony")


@pytest.fixture
def bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to which every Python process adds its id and the address that it binds a socket to."""
    file = tmp_path / "bound"
    (tmp_path / "sitecustomize.py").write_text(NOTES_BINDS.format(path=str(file)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return file


def test_a_colony_from_up_to_down(antc: Antc, models: Models, bound: Path) -> None:
    path = models.path("tiny-llama")
    up = antc.run("up", "--foragers", "2", "--model", path, "--split", "2", *FREE_PORTS, "--api-key", KEY)
    assert "is ready: tensor 2, " in up.stdout and "antc down" in up.stdout

    (loaded,) = antc.json("ps")
    assert loaded["state"] == "ready"
    assert [shard["forager"] for shard in loaded["shards"]] == ["forager-1", "forager-2"]
    assert all(shard["planned"] > 0 for shard in loaded["shards"])
    eventually(
        lambda: all(shard["resident"] > 0 for shard in antc.json("ps")[0]["shards"]),
        "a heartbeat tells the resident memory",
    )
    assert {node["id"] for node in antc.json("nodes")} == {"forager-1", "forager-2"}
    assert all(name in antc.run("ps").stdout for name in ("forager-1", "forager-2", "ready"))

    shards = {process.pid for process in antc.processes() if "antfarm.shard" in process.cmdline()}
    binds = [line.split() for line in bound.read_text().splitlines()]
    assert len(shards) == 2 and shards < {int(pid) for pid, _ in binds}, "links are made at their own sockets"
    open_now = [
        connection.laddr.ip
        for process in antc.processes()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(open_now) == 2, "the API's and the bus's"
    assert {*open_now, *(address for _, address in binds)} == {"127.0.0.1"}

    answer = antc.json("ask", "Hello?", "--max-tokens", "5", "--temperature", "0")
    assert answer["usage"]["completion_tokens"] == 5
    told = antc.run("ask", "-", "--max-tokens", "5", "--temperature", "0", stdin="Hello?")
    assert told.stdout.strip() == answer["choices"][0]["message"]["content"].strip()
    assert "tokens/s" in told.stderr

    chat = antc.run("chat", "--max-tokens", "3", stdin="Hello?\n/reset\nAnd now?\n")
    assert chat.stderr.count("; prompt ") == 2 and "forgotten" in chat.stderr

    counts = antc.json("ops", "--count")
    assert counts["forager-joined"] == 2 and counts["model-ready"] == 1
    assert any("model-ready" in line for line in antc.run("ops").stdout.splitlines())
    assert antc.run("doctor", code=None).stdout.count("wrong") == 0

    again = antc.run("up", *FREE_PORTS, code=1)
    assert again.stderr.startswith("antc: colony-exists:")
    assert len(antc.json("nodes")) == 2, "the refused `up` must not touch what runs"

    shown = shown_by_the_system(antc.processes()) + antc.logs()
    for secret in (antc.home.secret_file.read_text().strip(), KEY):
        assert secret not in shown

    down = antc.run("down")
    assert down.stdout.count("ended") == 3
    assert antc.processes() == []
    assert antc.run("down").stdout == "nothing runs here\n"
    assert antc.run("ask", "Hello?", code=1).stderr.startswith("antc: colony-down:")


def test_a_model_is_loaded_resharded_and_unloaded(antc: Antc, models: Models) -> None:
    antc.run("up", "--foragers", "2", *FREE_PORTS)
    assert antc.json("ps") == []
    antc.run("load", models.path("tiny-qwen3"), "--name", "tiny", "--split", "2", "--mode", "pipeline")
    assert antc.json("ps")[0]["mode"] == "pipeline"
    antc.run("shard", "tiny", "--split", "2", "--mode", "tensor", "--shares", "2,1")
    (loaded,) = antc.json("ps")
    assert (loaded["model"], loaded["mode"], loaded["state"]) == ("tiny", "tensor", "ready")
    impossible = antc.run("load", models.path("tiny-llama"), "--split", "64", code=1)
    assert impossible.stderr.startswith(("antc: split-impossible:", "antc: no-capacity:"))
    assert {model["model"]: model["state"] for model in antc.json("ps")}["tiny"] == "ready"
    antc.run("unload", "tiny")
    assert "did not load" in antc.run("unload", "tiny-llama-f32", code=1).stderr
    refused = antc.run("ask", "Hello?", code=1)
    assert refused.stderr.startswith("antc: model-") and refused.stdout == ""
    assert antc.run("unload", "tiny", code=1).stderr.startswith("antc: model-")


def test_a_host_joins_by_the_line_and_a_stranger_does_not(home: Callable[[str], Antc], antc: Antc) -> None:
    queen = antc.start("queen", *FREE_PORTS)
    eventually(lambda: state.read(antc.home).on_bus(), "the queen is up")
    line = antc.run("nodes", "--join").stdout.strip()
    secret = antc.home.secret_file.read_text().strip()
    assert line.startswith("antc forager --join antfarm://127.0.0.1:") and line.endswith(secret)

    url = line.split()[-1]
    by_argument = home("one").start("forager", "--join", url, "--name", "one")
    by_stdin = home("two").start("forager", "--join", "-", "--name", "two", stdin=line + "\n")
    eventually(lambda: {"one", "two"} == {node["id"] for node in antc.json("nodes")}, "both have joined")
    assert secret not in shown_by_the_system([psutil.Process(p.pid) for p in (queen, by_argument, by_stdin)])
    assert len(home("one").json("nodes")) == 2, "operators' commands work from a host that joined"

    stranger = home("stranger").run(
        "forager", "--join", url.replace(secret, "not-the-secret-of-this-colony"), code=1
    )
    assert re.search(REFUSED, stranger.stderr)

    for process in (by_argument, by_stdin, queen):
        assert secret not in antc.finish(process, signal.SIGTERM, 0)
    assert antc.processes() == []


async def test_a_nats_of_your_own_is_taken_with_its_token(
    home: Callable[[str], Antc], tmp_path: Path, models: Models
) -> None:
    """Its messages are smaller than those of the embedded one: what does not fit is an error, not nothing."""
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")

    def host_and_guest(bus: str) -> None:
        host, guest = home("host"), home("guest")
        refused = host.run("queen", "--bus", bus, "--api-port", "0", code=1)
        assert re.search(REFUSED, refused.stderr)
        queen = host.start("queen", "--bus", bus, "--bus-token", token, "--api-port", "0")
        eventually(lambda: state.read(host.home).on_bus(), "the queen is up")
        line = host.run("nodes", "--join").stdout
        forager = guest.start("forager", "--join", "-", "--bus-token", token, stdin=line)
        eventually(lambda: host.json("nodes"), "the forager has joined")
        assert guest.json("ps") == []
        guest.run("load", models.path("tiny-llama"), "--name", "tiny")
        daemon = state.read(host.home).queen()
        assert daemon
        with httpx.Client(base_url=daemon.api, timeout=60) as http:
            small = http.post("/tokenize", json={"prompt": "ants"})
            large = http.post("/tokenize", json={"prompt": "ants " * 180_000})
        assert small.status_code == 200 and small.json()["count"] > 0
        assert (large.status_code, large.json()["error"]["code"]) == (400, "invalid-request")
        assert "the bus takes at most 1048576" in large.json()["error"]["message"]
        for process, antc in ((forager, guest), (queen, host)):
            antc.finish(process, signal.SIGTERM, 0)

    async with stock_server(tmp_path / "nats") as url:
        await asyncio.to_thread(host_and_guest, url)


@pytest.mark.parametrize("until", ["queen", "forager"])
def test_ctrl_c_during_up_leaves_nothing(antc: Antc, starts: Starts, until: str) -> None:
    with starts.held("forager-2"):
        up = antc.start("up", "--foragers", "2", *FREE_PORTS)
        eventually(
            lambda: any(p.role == until for p in state.read(antc.home).processes) or up.poll() is not None,
            f"a {until} has started",
        )
        antc.finish(up, signal.SIGINT, 130)
    assert antc.processes() == []
    assert state.read(antc.home).processes == ()


@pytest.mark.parametrize("option", ["--api-port", "--bus-port"])
def test_a_taken_port_is_named_and_nothing_stays(antc: Antc, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        other = "--bus-port" if option == "--api-port" else "--api-port"
        refused = antc.run("up", option, port, other, "0", code=1)
    assert "antc: port-in-use:" in refused.stderr and port in refused.stderr
    assert antc.processes() == []


def test_a_bad_model_takes_the_new_colony_down(antc: Antc, tmp_path: Path) -> None:
    path = tmp_path / "not.gguf"
    path.write_bytes(b"not a model" * 100)
    refused = antc.run("up", "--model", path, *FREE_PORTS, code=1)
    assert "antc: not-a-gguf:" in refused.stderr
    assert antc.processes() == []


def test_a_killed_queen_takes_her_bus_with_her(antc: Antc) -> None:
    antc.run("up", *FREE_PORTS)
    queen = state.read(antc.home).queen()
    assert queen is not None
    (bus,) = [p for p in psutil.Process(queen.pid).children() if "nats" in p.name()]
    psutil.Process(queen.pid).kill()
    psutil.wait_procs([bus], timeout=10)
    assert not bus.is_running()
    assert antc.run("ask", "Hello?", code=1).stderr.startswith("antc: colony-down:")
    antc.run("down")
    assert antc.processes() == []
