"""What runs in one home: `colony.json`, one entry a process, kept by the processes themselves.

A process is known by its id and its start time together, so that another process that was later
given the same id is never taken for ours. Entries of processes that have ended count for nothing;
a killed process leaves no repair work. Only the last queen's entry is kept after her end, until the
next is ready: foragers, here and elsewhere, go on dialling her ports.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import psutil

from antfarm.client.disk import private
from antfarm.config import Home
from antfarm.errors import Reason, StateError

CLOCK_STEP_S = 10.0  # how far a start time may seem to move when the system's clock is set
REVIVE = "`antc queen` starts it again; `antc down` ends what is left"
RIVALS = {"up": ("up", "queen", "forager"), "queen": ("queen",), "forager": ("forager",)}


class Process(msgspec.Struct, frozen=True):
    """One process of the colony on this host. `role`: up (starting a colony) | queen | forager."""

    role: str
    name: str
    pid: int = 0
    started: float = 0.0  # seconds since the epoch
    api: str = ""  # a queen's URL
    bus: str = ""  # URL
    bus_token: str = ""  # the file with its token, when it is not the colony's own bus
    join: str = ""  # a queen's host:port for other hosts

    def running(self) -> psutil.Process | None:
        """The process, if it still lives."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < CLOCK_STEP_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except (psutil.NoSuchProcess, ValueError, OverflowError):  # the last two: no process ever had this id
            return None


class ColonyState(msgspec.Struct, frozen=True):
    processes: tuple[Process, ...] = ()

    def queen(self) -> Process | None:
        return next((p for p in self.processes if p.role == "queen"), None)

    def on_bus(self) -> Process | None:
        """Any process that knows where the bus is."""
        return next((p for p in self.processes if p.bus), None)


def read(home: Home) -> ColonyState:
    """The living processes of this home. Raises `StateError` when the file is damaged."""
    return ColonyState(tuple(p for p in _stored(home) if p.running()))


def last_queen(home: Home) -> Process | None:
    """The queen that was last ready in this home, whether she lives or not. Raises as `read`."""
    return next((p for p in _stored(home) if p.role == "queen" and p.bus), None)


def bereft(home: Home) -> bool:
    """Whether this home's own queen has ended, and foragers of hers go on. Raises as `read`."""
    last, living = last_queen(home), read(home)
    return last is not None and living.queen() is None and any(p.bus == last.bus for p in living.processes)


def _stored(home: Home) -> tuple[Process, ...]:
    try:
        return msgspec.json.decode(home.state_file.read_bytes(), type=ColonyState).processes
    except FileNotFoundError:
        return ()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateError(
            Reason.BAD_SETTING,
            f"{home.state_file} can't be read: {error}",
            hint="end the antfarm processes of this home and remove the file",
        ) from error


@contextmanager
def claim(home: Home, role: str, name: str = "") -> Iterator[Callable[[Process], Process]]:
    """Be the one process of this role (and name) in the home while the block runs.

    Yields a way to replace the entry, once addresses are known. Raises `StateError` `colony-exists`
    when another process holds the role.
    """
    mine = Process(role, name, os.getpid(), psutil.Process().create_time())

    def others() -> list[Process]:
        """The rest that lives, and the last queen, if she has ended or is the one that ends now."""
        rest = [p for p in read(home).processes if (p.role, p.pid) != (role, mine.pid)]
        last = last_queen(home)
        return rest if last is None or last in rest else [*rest, msgspec.structs.replace(last, pid=-1)]

    def announce(entry: Process) -> Process:
        entry = msgspec.structs.replace(entry, pid=mine.pid, started=mine.started)
        with _locked(home):
            _write(home, (*(p for p in others() if role != "queen" or p.role != "queen"), entry))
        return entry

    with _locked(home):
        check_free(home, role, name)
        _write(home, (*others(), mine))
    try:
        yield announce
    finally:
        with (
            suppress(OSError),
            _locked(home),
        ):  # a full disk: an entry of a process that has ended does no harm
            _write(home, others())


def check_free(home: Home, role: str, name: str = "") -> None:
    """Raises `StateError` `colony-exists` when another process holds the role, or one that it excludes."""
    for other in read(home).processes:
        if (other.role, other.pid) == (role, os.getpid()):
            continue
        if other.role in RIVALS[role] and (other.name == name or role == "up"):
            raise _taken(home, other)


def _taken(home: Home, other: Process) -> StateError:
    who = f"{other.role} {other.name}".strip()
    return StateError(
        Reason.COLONY_EXISTS,
        f"{who} runs in {home.path} already, as process {other.pid}",
        hint=REVIVE
        if bereft(home)
        else "use it, end it with `antc down`, or choose another --home (a forager: another --name)",
    )


@contextmanager
def _locked(home: Home) -> Iterator[None]:
    home.make()
    with open(home.lock_file, "w", opener=private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(home: Home, processes: Iterable[Process]) -> None:
    """Replace the state in one step, so that a reader never sees half of it."""
    fresh = home.state_file.with_suffix(".new")
    with open(fresh, "wb", opener=private) as file:
        file.write(msgspec.json.format(msgspec.json.encode(ColonyState(tuple(processes)))))
    fresh.replace(home.state_file)
