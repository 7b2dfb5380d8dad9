"""Homes that can't be used, and streams that can't be written: one sentence, never a traceback."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.antc import FREE_PORTS, Antc, eventually

from antfarm.client import state

COMMANDS = [("ps",), ("down",), ("models",), ("ask", "x"), ("nodes", "--join"), ("up", *FREE_PORTS)]


def one_refusal(antc: Antc, *words: str, reason: str = "bad-setting") -> str:
    """The only complaint of a command that is refused."""
    told = antc.run(*words, code=1).stderr
    assert told.startswith(f"antc: {reason}: ") and told.count("antc: ") == 1 and "Traceback" not in told
    assert len(told.splitlines()) == 2, told
    return told


@pytest.mark.parametrize("words", [*COMMANDS, ("queen", *FREE_PORTS)], ids=lambda words: words[0])
def test_a_home_that_is_a_file(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "file"
    path.touch()
    assert f"the home {path} is not a directory" in one_refusal(Antc(path), *words)


def test_a_home_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    one_refusal(Antc(tmp_path / "file" / "home"), "up", *FREE_PORTS)


def test_a_secret_that_is_none(tmp_path: Path) -> None:
    antc = Antc(tmp_path / "home")
    antc.home.secret_file.mkdir(parents=True)
    assert "secret can't be used: Is a directory" in one_refusal(antc, "up", *FREE_PORTS)
    antc.home.secret_file.rmdir()
    antc.home.secret_file.write_bytes(bytes(range(128, 192)))
    assert "secret holds no secret" in one_refusal(antc, "up", *FREE_PORTS)


def test_a_token_file_that_is_missing(tmp_path: Path) -> None:
    words = ("queen", "--bus", "nats://127.0.0.1:1", "--bus-token", "/none", "--api-port", "0")
    assert "/none" in one_refusal(Antc(tmp_path / "home"), *words)


def test_an_id_that_no_process_has(tmp_path: Path) -> None:
    antc = Antc(tmp_path / "home")
    antc.home.path.mkdir()
    antc.home.state_file.write_text('{"processes":[{"role":"queen","name":"","pid":-1}]}')
    assert antc.run("down").stdout == "nothing runs here\n"


@pytest.mark.parametrize("words", [("models",), ("down",), ("--version",)], ids=lambda words: words[0])
def test_a_full_disk_behind_stdout(tmp_path: Path, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            Antc(tmp_path / "home").command(*words), stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "antc: bad-setting: stdout can't be written: No space left on device\n"


def test_closed_streams(tmp_path: Path) -> None:
    command = Antc(tmp_path / "home").command("down")
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=False, timeout=60)
    assert done.returncode == 0


def test_what_a_home_holds_is_its_owners_alone(tmp_path: Path) -> None:
    antc = Antc(tmp_path / "home")
    try:
        antc.run("up", *FREE_PORTS)
        made = [antc.home.path, antc.home.logs, antc.home.state_file, antc.home.lock_file]
        made += antc.home.logs.glob("*.log")
        open_to_others = {p.name for p in made if stat.S_IMODE(p.stat().st_mode) & 0o077}
        assert open_to_others <= {"nats.log"}
    finally:
        assert not antc.close()


def test_a_queen_takes_as_many_connections_as_the_system_allows(tmp_path: Path) -> None:
    antc = Antc(tmp_path / "home")
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
        antc.run("up", *FREE_PORTS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
        queen = state.read(antc.home).queen()
        assert queen and resource.prlimit(queen.pid, resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
        antc.close()


def test_ctrl_c_at_any_moment_is_quiet(tmp_path: Path) -> None:
    antc = Antc(tmp_path / "home")
    ended_early = 0
    for step in range(8):
        process = subprocess.Popen(
            antc.command("models"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        until_main_runs(process)
        time.sleep(step * 0.04)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        assert "Traceback" not in told, told
        ended_early += process.returncode in (-signal.SIGINT, 130)
    assert ended_early


def until_main_runs(process: subprocess.Popen[str]) -> None:
    """The interpreter handles Ctrl-C from its start, with a traceback, which ends with our first line."""
    handled = False

    def begun() -> bool:
        nonlocal handled
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = re.search(r"^SigCgt:\s+(\w+)$", status, re.MULTILINE)
        now = caught is not None and bool(int(caught[1], 16) >> (signal.SIGINT - 1) & 1)
        handled = handled or now
        return (handled and not now) or process.poll() is not None

    eventually(begun, "main runs")


def test_ctrl_c_waits_until_a_replaced_process_can_handle_it(tmp_path: Path) -> None:
    code = "import os, signal, threading; from antfarm.cli import joining\n"
    code += "press = lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)\n"
    code += "os.execve = lambda *a: press() or os.execv(a[0], a[1])\n"
    code += "joining.start_again(['--version'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
