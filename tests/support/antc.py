"""Running `antc` as a person does, in a home of its own, and seeing what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import psutil

from antfarm.config import Home

COMMAND_S = 100.0
FREE_PORTS = ("--api-port", "0", "--bus-port", "0")


class Antc:
    """`antc --home HOME ...`"""

    def __init__(self, path: Path) -> None:
        self.home = Home(path)
        self._started: list[subprocess.Popen[str]] = []

    def command(self, *words: str | Path) -> list[str]:
        return [sys.executable, "-m", "antfarm", "--home", str(self.home.path), *map(str, words)]

    def run(
        self, *words: str | Path, stdin: str = "", code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end, which must be with this exit code."""
        done = subprocess.run(
            self.command(*words), input=stdin, capture_output=True, text=True, timeout=COMMAND_S
        )
        assert code is None or done.returncode == code, (
            f"{words}: {done.stdout}\n{done.stderr}\n{self.logs()}"
        )
        return done

    def json(self, *words: str | Path) -> Any:
        return json.loads(self.run(*words, "--json").stdout)

    def start(self, *words: str | Path, stdin: str = "") -> subprocess.Popen[str]:
        """Start and leave running; `finish` it, or let `close` do so."""
        with TemporaryFile("w+") as typed:
            typed.write(stdin)
            typed.seek(0)
            process = subprocess.Popen(
                self.command(*words), stdin=typed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        self._started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str], number: int, code: int) -> str:
        """Send a signal and wait for the end, which must be with this exit code; returns the output."""
        process.send_signal(number)
        output, _ = process.communicate(timeout=COMMAND_S)
        assert process.returncode == code, f"{output}\n{self.logs()}"
        return output

    def close(self) -> list[psutil.Process]:
        """End everything of this home; what `antc down` and the end of the others left running."""
        self.run("down", code=None)
        for process in self._started:
            process.kill()
            process.communicate()
        left = self.processes()
        for leftover in left:
            with suppress(psutil.NoSuchProcess):
                leftover.kill()
        return left

    def processes(self) -> list[psutil.Process]:
        """Everything alive that has to do with this home: it is in an argument, or an ancestor has it."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            try:
                if str(self.home.path) in " ".join(process.cmdline()) and process.pid != os.getpid():
                    found |= {p.pid: p for p in (process, *process.children(recursive=True))}
            except psutil.Error:
                continue
        return [p for p in found.values() if alive(p)]

    def logs(self) -> str:
        """All that was logged, for a failed test."""
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self.home.logs.glob("*")))


def alive(process: psutil.Process) -> bool:
    """Whether it runs: not one that has ended and that its parent has not waited for yet."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it ended between the two
        return False


def eventually(true: Callable[[], Any], what: str, within: float = 60.0) -> Any:
    """Look until `true` holds; what it then is."""
    deadline = time.monotonic() + within
    while not (value := true()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(0.02)
    return value


def shown_by_the_system(processes: Sequence[psutil.Process]) -> str:
    """Arguments and environments of processes, as anyone with the right to look reads them."""
    texts = []
    for process in processes:
        for name in ("cmdline", "environ"):
            texts.append(Path(f"/proc/{process.pid}/{name}").read_bytes().decode(errors="replace"))
    return "\n".join(texts)
