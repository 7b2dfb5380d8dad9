"""Start and stop the processes of one home, detached from this one.

A daemon is told everything by its arguments and its home's files, none of it secret on a command
line. It says that it is ready, or why it is not, as one JSON line on a pipe that we wait on.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import psutil

from antfarm.client import state
from antfarm.client.state import Process
from antfarm.config import API_PORT, BUS_PORT, STOP_S, Home
from antfarm.errors import AntfarmError, Reason, StateError
from antfarm.forager.settings import MEMORY_SHARE, cores
from antfarm.messages import Failure, Message

START_S = 30.0  # from spawning a daemon to its ready line
LOOK_S = 0.02  # between two looks at whether a process has ended
API_KEY_VARIABLE = "ANTFARM_API_KEY"


class Ready(Message, frozen=True, tag="ready"):
    """A daemon's first words to who started it."""

    process: Process


@dataclass(frozen=True)
class QueenOptions:
    """How a queen is started. Ports: 0 takes any free one. `bus` names a NATS that runs already."""

    listen: str = "127.0.0.1"
    api_port: int = API_PORT
    bus_port: int = BUS_PORT
    bus: str = ""
    token_file: str = ""  # holds the token of that NATS

    def arguments(self) -> list[str]:
        given = ["--listen", self.listen, "--api-port", str(self.api_port)]
        if not self.bus:
            return [*given, "--bus-port", str(self.bus_port)]
        token = ["--bus-token", self.token_file] if self.token_file else []
        return [*given, "--bus", self.bus, *token]


@dataclass(frozen=True)
class ForagerOptions:
    """How a forager is started. 0, empty: the forager decides for itself."""

    name: str = ""
    memory: int = 0  # bytes it may use for shards
    threads: int = 0
    cpus: tuple[int, ...] = ()  # that it and its shards keep to
    listen: str = ""

    def arguments(self) -> list[str]:
        given = {
            "--name": self.name,
            "--memory": str(self.memory or ""),
            "--threads": str(self.threads or ""),
            "--cpus": ",".join(map(str, self.cpus)),
            "--listen": self.listen,
        }
        return [word for option, value in given.items() if value for word in (option, value)]


def divide_host(count: int, each: ForagerOptions | None = None) -> list[ForagerOptions]:
    """Options for `count` foragers that share this host's cores and memory evenly.

    What `each` sets stays; names get a number when there is more than one.
    """
    each = each or ForagerOptions()
    stem = each.name or "forager"
    free = int(psutil.virtual_memory().available * MEMORY_SHARE)
    shared = replace(
        each, threads=each.threads or max(1, cores() // count), memory=each.memory or free // count
    )
    return [replace(shared, name=f"{stem}-{number}") for number in range(1, count + 1)]


def start_colony(
    home: Home, queen: QueenOptions, foragers: Sequence[ForagerOptions], lifeline: int | None = None
) -> Process:
    """Start a queen and foragers in `home`, and return the queen once all are ready.

    With `lifeline`, the read end of a pipe, they end when its other end is closed: with this process,
    however that ends.

    Raises `StateError` `colony-exists`, or what kept a daemon from starting; then, and when
    interrupted, nothing that was started stays.
    """
    with state.claim(home, "up"):
        first = start_queen(home, queen, lifeline)
        try:
            start_foragers(home, foragers, lifeline)
        except BaseException:
            stop_processes([first.pid])
            raise
        return first


@contextmanager
def own_colony(home: Home, queen: QueenOptions, foragers: Sequence[ForagerOptions]) -> Iterator[None]:
    """A colony that ends with the block, or with this process. Raises as `start_colony`."""
    watched, held = os.pipe()  # our end is closed in any case, however this process ends
    try:
        start_colony(home, queen, foragers, watched)
        try:
            yield
        finally:
            stop_colony(home)
    finally:
        os.close(watched)
        os.close(held)


def start_queen(home: Home, options: QueenOptions, lifeline: int | None = None) -> Process:
    """Start a queen and wait until it is ready."""
    return _start(home, {"queen": ["queen", *options.arguments()]}, lifeline)[0]


def start_foragers(
    home: Home, foragers: Iterable[ForagerOptions], lifeline: int | None = None
) -> list[Process]:
    """Start foragers of the colony that runs in `home`, side by side, and wait until all are ready."""
    return _start(home, {o.name or "forager": ["forager", *o.arguments()] for o in foragers}, lifeline)


def stop_colony(home: Home) -> list[Process]:
    """End everything that runs in `home`: foragers first, so that they can say goodbye, then the queen.

    Returns what was ended. A process that does not end in time is killed, with its children.
    """
    ended = []
    for role in ("up", "forager", "queen"):
        found = [p for p in state.read(home).processes if p.role == role and p.pid != os.getpid()]
        stop_processes(p.pid for p in found)
        ended += found
    return ended


def stop_processes(pids: Iterable[int]) -> None:
    """Ask these processes to end, wait, and kill those that do not end in time, with their children."""
    asked = list(_existing(pids))
    family = [child for process in asked for child in _children(process)]
    for process in asked:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    left = _left_of(asked, within=2 * STOP_S)
    left = _left_of([*left, *family], within=1.0)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _left_of(left, within=STOP_S)


def _left_of(processes: list[psutil.Process], within: float) -> list[psutil.Process]:
    """Those that still run after waiting for their ends.

    A process that has ended but whose parent has not noticed counts as ended: the first process of
    a container may never notice.
    """
    deadline = time.monotonic() + within
    while (left := [p for p in processes if _runs(p)]) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            return True
        # Takes note of the end of our own child, unless threads of it have yet to end.
        return os.waitpid(process.pid, os.WNOHANG) == (0, 0)
    except (psutil.NoSuchProcess, ChildProcessError):
        return False


def _existing(pids: Iterable[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _start(home: Home, commands: dict[str, list[str]], lifeline: int | None) -> list[Process]:
    """Start daemons by log name and wait until all are ready; if one fails, none stays."""
    daemons: list[_Daemon] = []
    try:
        for name, command in commands.items():
            daemons.append(_Daemon.spawn(home, command, name, lifeline))
        return [daemon.wait_ready() for daemon in daemons]
    except BaseException:
        stop_processes(daemon.pid for daemon in daemons)
        raise
    finally:
        for daemon in daemons:
            os.close(daemon.ready)


@dataclass(frozen=True)
class _Daemon:
    pid: int
    ready: int  # the read end of its pipe
    words: Path  # what it wrote to stdout and stderr, which is little

    @classmethod
    def spawn(cls, home: Home, command: list[str], name: str, lifeline: int | None) -> _Daemon:
        """Start `antc COMMAND` in a session of its own, reading nothing from the terminal."""
        home.make()
        home.logs.mkdir(exist_ok=True, mode=0o700)
        words = home.logs / f"{name}.out"
        ready, told = os.pipe()
        output = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        words_of_ours = ["--ready-fd", "3", *(["--lifeline-fd", "4"] if lifeline is not None else [])]
        line = [] if lifeline is None else [fcntl.fcntl(lifeline, fcntl.F_DUPFD_CLOEXEC, 5)]
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "antfarm", "--home", str(home.path), *command, *words_of_ours],
                {k: v for k, v in os.environ.items() if k != API_KEY_VARIABLE},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                    (os.POSIX_SPAWN_DUP2, told, 3),
                    *((os.POSIX_SPAWN_DUP2, end, 4) for end in line),
                ],
                setsid=True,
            )
        finally:
            for descriptor in (output, told, *line):
                os.close(descriptor)
        return cls(pid, ready, words)

    def wait_ready(self) -> Process:
        """Wait for the ready line. Raises what the daemon says kept it, or `internal` with its last words."""
        line = self._line()
        if not line:
            raise self._died()
        told = msgspec.json.decode(line, type=Ready | Failure)
        if isinstance(told, Failure):
            raise told.error()
        return told.process

    def _line(self) -> bytes:
        """Up to the first newline, or what there is when the daemon ends or its time is up."""
        deadline = time.monotonic() + START_S
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.ready], [], [], left)[0]:
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
                raise StateError(
                    Reason.TIMEOUT,
                    f"a daemon was not ready within {START_S:g} s",
                    hint=f"look into the logs in {self.words.parent}",
                )
            chunk = os.read(self.ready, 65536)
            if not chunk:
                return b""
            line += chunk
        return line

    def _died(self) -> AntfarmError:
        last = self.words.read_text(errors="replace").strip().splitlines()[-1:]
        return StateError(
            Reason.INTERNAL,
            f"a daemon ended before it was ready: {' '.join(last) or 'it said nothing'}",
            hint=f"look into {self.words} and the other logs there",
        )


class Starter:
    """A daemon's side of the pipe, for one message: that it is ready, or why it can't be.

    As a context manager it passes on the error that ends the block. Without a pipe, in the
    foreground, it does nothing.
    """

    def __init__(self, descriptor: int) -> None:
        self._pipe = os.fdopen(descriptor, "wb") if descriptor >= 0 else None
        self.waits = self._pipe is not None

    def tell(self, told: Ready | Failure) -> None:
        """Raises `StateError` `cancelled` when the starter has gone: nobody knows of this daemon then."""
        if self._pipe is None:
            return
        pipe, self._pipe = self._pipe, None
        try:
            with pipe:
                pipe.write(msgspec.json.encode(told) + b"\n")
        except BrokenPipeError:
            raise StateError(Reason.CANCELLED, "the process that started this daemon has gone") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, AntfarmError):
            self.tell(Failure.of(error))
        elif isinstance(error, Exception):
            self.tell(Failure(Reason.INTERNAL, f"{type(error).__name__}: {error}"))
