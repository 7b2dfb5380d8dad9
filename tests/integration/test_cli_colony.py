"""`antc` where not all goes as planned: interrupted loads, leftovers, keys, hosts other than the queen's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from support.antc import FREE_PORTS, Antc, eventually
from support.models import Models
from support.starts import Starts
from support.stopping import stopped

from antfarm.client import state


def test_ctrl_c_unloads_what_was_loading_but_leaves_a_new_split_going_on(
    antc: Antc, models: Models, starts: Starts
) -> None:
    antc.run("up", *FREE_PORTS)
    with starts.held("antfarm.shard"):
        load = antc.start("load", models.path("tiny-llama"), "--name", "one")
        eventually(lambda: antc.json("ps"), "the load has begun")
        told = antc.finish(load, signal.SIGINT, 130)
        assert "one is unloaded again" in told and "Traceback" not in told
        assert antc.json("ps") == []
    antc.run("load", models.path("tiny-llama"), "--name", "two")
    epoch = antc.json("ps")[0]["epoch"]
    with starts.held("antfarm.shard"):
        shard = antc.start("shard", "two")
        eventually(lambda: len(antc.json("ps")) == 2, "the change has begun")
        told = antc.finish(shard, signal.SIGINT, 130)
    assert "the change of two goes on" in told and "antc unload two" in told
    eventually(
        lambda: [(one["state"], one["epoch"]) for one in antc.json("ps")] == [("ready", epoch + 1)],
        "it went on",
    )


def test_a_killed_queen_is_started_again_where_her_foragers_look_for_her(antc: Antc, models: Models) -> None:
    antc.run("up", "--foragers", "2", *FREE_PORTS)
    queen = state.read(antc.home).queen()
    assert queen is not None
    os.kill(queen.pid, signal.SIGKILL)
    eventually(lambda: not queen.running(), "the queen has ended")
    log = antc.home.logs / "queen.log"
    before = log.stat().st_mtime
    for words, reason in (
        (("up", *FREE_PORTS), "colony-exists: forager forager-"),
        (("ask", "Hello?"), "colony-down"),
        (("ps",), "bus-unreachable"),
    ):
        told = antc.run(*words, code=1).stderr
        assert told.startswith(f"antc: {reason}") and state.REVIVE in told.replace("\n", " "), told
    assert log.stat().st_mtime == before, "no queen was started for that"
    antc.start("queen")
    fresh = eventually(lambda: ready_queen(antc), "a queen is ready")
    assert (fresh.api, fresh.bus) == (queen.api, queen.bus) and fresh.pid != queen.pid
    eventually(lambda: len(antc.json("nodes")) == 2, "the foragers are back")
    assert " is ready" in antc.run("load", models.path("tiny-llama"), "--split", "2").stdout


def ready_queen(antc: Antc) -> state.Process | None:
    queen = state.read(antc.home).queen()
    return queen if queen and queen.bus else None


def test_a_queen_that_hangs_is_told(antc: Antc) -> None:
    antc.run("up", *FREE_PORTS)
    queen = state.read(antc.home).queen()
    assert queen is not None
    with stopped(queen.pid):
        assert antc.run("ps", code=1).stderr.startswith("antc: timeout: the queen gave no answer within")
        wrong = [
            one
            for one in json.loads(antc.run("doctor", "--json", code=1).stdout)
            if one["verdict"] == "wrong"
        ]
        assert [one["check"] for one in wrong] == ["bus"] and "the queen gave no answer" in wrong[0]["text"]


def test_a_key_stays_until_it_is_dropped_and_that_is_told(antc: Antc) -> None:
    assert "key " in antc.run("up", *FREE_PORTS, "--api-key", "a-key-of-the-tests").stdout
    refused = antc.run("up", *FREE_PORTS, "--api-key", "another-key", code=1)
    assert refused.stderr.startswith("antc: colony-exists:")
    assert antc.home.api_key_file.read_text() == "a-key-of-the-tests\n", "a refused start changes nothing"
    antc.run("down")
    assert "--no-api-key" in antc.run("up", *FREE_PORTS).stdout
    antc.run("down")
    assert "key " not in antc.run("up", *FREE_PORTS, "--no-api-key").stdout
    assert not antc.home.api_key_file.exists()


def test_ps_and_load_tell_the_context_and_what_memory_took_from_it(antc: Antc, models: Models) -> None:
    antc.run("up", "--memory", "70MiB", *FREE_PORTS)
    done = antc.run("load", models.path("tiny-llama"))
    (loaded,) = antc.json("ps")
    assert f"context {loaded['context']} x {loaded['slots']}" in done.stdout
    listed = antc.run("ps").stdout
    assert "CONTEXT" in listed and f" {loaded['context']} " in listed
    whole = loaded["context"] == loaded["trained"] and loaded["slots"] == 4
    assert whole or "memory is short: " in done.stderr
    assert "trained for" not in done.stderr
    antc.run("unload", loaded["model"])
    longer = antc.run("load", models.path("tiny-llama"), "--context", "600", "--slots", "1")
    assert f"was trained for {loaded['trained']} tokens" in longer.stderr


def test_a_chat_goes_on_after_an_error(antc: Antc, models: Models) -> None:
    path = models.path("tiny-llama")
    antc.run("up", "--model", path, "--context", "64", "--slots", "1", *FREE_PORTS)
    said = antc.run("chat", "--max-tokens", "3", stdin=f"Hi\n{'long ' * 200}\nAnd now?\n")
    assert "antc: context-overflow: " in said.stderr and "/reset makes room" in said.stderr
    assert said.stderr.count("; prompt ") == 2


def test_ask_at_a_host_that_joined_names_the_queens(antc: Antc, tmp_path: Path) -> None:
    antc.run("up", *FREE_PORTS)
    line = antc.run("nodes", "--join").stdout
    guest = Antc(tmp_path / "guest")
    try:
        guest.start("forager", "--join", "-", "--name", "guest", stdin=line)
        eventually(lambda: len(antc.json("nodes")) == 2, "the guest has joined")
        for words in (("ask", "x"), ("chat",), ("nodes", "--join")):
            told = guest.run(*words, code=1).stderr
            assert (
                told.startswith("antc: colony-down: ") and "a forager's home" in told and "127.0.0.1" in told
            )
    finally:
        assert not guest.close()


def test_what_is_wrong_is_told_before_anything_starts(antc: Antc, tmp_path: Path) -> None:
    page = tmp_path / "page.gguf"
    page.write_text("<html></html>" * 100)
    for words, code, said in (
        (("--mode", "foo"), 2, "'foo' is not one of auto"),
        (("--model", "none-such"), 1, "antc: model-unknown:"),
        (("--model", "/none.gguf"), 1, "antc: model-unknown:"),
        (("--model", str(page)), 1, "antc: not-a-gguf:"),
    ):
        assert said in antc.run("up", *FREE_PORTS, *words, code=code).stderr
    assert "antc: not-a-gguf:" in antc.run("pull", page, code=1).stderr
    assert not (antc.home.logs / "queen.log").exists()


def test_a_foreground_daemon_tells_its_error_once(antc: Antc) -> None:
    antc.home.path.mkdir(mode=0o700)
    told = antc.run("forager", "--join", "antfarm://127.0.0.1:1/a-secret-of-24-characters", code=1).stderr
    assert told.count("bus-unreachable") == 1


def test_progress_without_a_terminal_repeats_nothing(antc: Antc, models: Models) -> None:
    up = antc.run("up", "--model", models.path("tiny-llama"), *FREE_PORTS)
    lines = [line for line in up.stderr.splitlines() if "100%" in line and "linked" in line]
    assert len(lines) == len(set(lines))


def test_a_killed_program_takes_its_colony_with_it(tmp_path: Path, models: Models) -> None:
    home = tmp_path / "home"
    code = f"""
import time
from antfarm import Colony
with Colony(foragers=1, home={str(home)!r}) as colony:
    print("up", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None and program.stdout.readline() == "up\n"
        daemons = json.loads((home / "colony.json").read_text())["processes"]
        assert len(daemons) == 2
        os.kill(program.pid, signal.SIGKILL)
    eventually(lambda: not any(psutil.pid_exists(one["pid"]) for one in daemons), "the daemons have ended")
    assert Antc(home).processes() == []
