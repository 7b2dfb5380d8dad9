"""What the queen and the forager share as daemons: one per role, a log, a ready line, a bounded end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import typer

from antfarm.cli.logs import log_to
from antfarm.client import state
from antfarm.client.launch import Ready, Starter
from antfarm.client.state import Process
from antfarm.config import STOP_S, Home
from antfarm.errors import AntfarmError, Reason, StateError

END_S = 2 * STOP_S  # from the signal to the end

_M_MMAP_THRESHOLD = -3  # in glibc's malloc.h
_MMAP_THRESHOLD = 128 << 10  # bytes: where glibc starts

log = logging.getLogger(__name__)


@dataclass
class Daemon:
    """One daemon's dealings with its home, its starter and its signals."""

    home: Home
    role: str
    announce: Callable[[Process], Process]  # into the home's state
    starter: Starter
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    signal: int = 0
    is_ready: bool = False

    def ready(self, entry: Process) -> None:
        """Everything listens: say so in the home, and to the starter. Its id and start time are filled in."""
        entry = self.announce(entry)
        self.is_ready = True
        self.starter.tell(Ready(entry))


def run_daemon(
    home: Home,
    role: str,
    name: str,
    starter: Starter,
    body: Callable[[Daemon], Awaitable[None]],
    lifeline: int = -1,
) -> None:
    """Run `body` until SIGTERM or Ctrl-C sets its `stop`, or it ends by itself.

    `lifeline` is the read end of a pipe, or -1: when its other end is closed, whoever this daemon was
    started for is gone, and it ends as with SIGTERM.

    Raises `StateError` `colony-exists` when this role (and name) is taken in the home.
    """
    log_to(home.logs / f"{name or role}.log" if starter.waits else None)
    _give_way()
    _take_many_connections()
    keep_heap_whole()
    with state.claim(home, role, name) as announce:
        daemon = Daemon(home, role, announce, starter)
        try:
            asyncio.run(_until_stopped(daemon, body, lifeline))
        except Exception as error:
            if starter.waits:  # in the foreground it is told once, at the end
                log.error("%s", error, exc_info=not isinstance(error, AntfarmError))
            raise
    if daemon.signal == signal.SIGINT:
        raise typer.Exit(130)


def _give_way() -> None:
    """A daemon that wakes up, to pass a token on or to say that it lives, must not push a shard off its
    core: the other shards wait for that one. Children inherit this; a shard takes it back for itself."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a container may forbid it; then it is as it was
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _take_many_connections() -> None:
    """Each is an open file, and what a process may open by default is soon used up by clients that wait."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS says more than it allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def keep_heap_whole() -> None:
    """A transport reads into a new buffer of 256 KiB each time, and shrinks it to what came. glibc places the
    first of them outside of its heap, then moves its threshold up, and from then on each leaves a hole in the
    heap, which grows for as long as the daemon runs. A threshold that was set does not move."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)


async def _until_stopped(daemon: Daemon, body: Callable[[Daemon], Awaitable[None]], lifeline: int) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` and `&` in scripts arrange
            loop.add_signal_handler(number, _stop, daemon, number)
    if lifeline >= 0:
        loop.add_reader(lifeline, _let_go, daemon, lifeline)
    work = asyncio.ensure_future(body(daemon))
    stopping = asyncio.ensure_future(daemon.stop.wait())
    await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not daemon.is_ready:
        work.cancel()
    done, _ = await asyncio.wait({work}, timeout=END_S)
    if not done:
        log.error("%s does not end; leaving it to the system", daemon.role)
        logging.shutdown()
        os._exit(1)  # children end with our pipes
    stopping.cancel()
    if not work.cancelled():
        work.result()


async def until_stopped(daemon: Daemon, *parts: Awaitable[object]) -> None:
    """Return when the daemon is to stop. A part that ends earlier is a failure, and raises its error."""
    running = [asyncio.ensure_future(part) for part in parts]
    stopping = asyncio.ensure_future(daemon.stop.wait())
    try:
        done, _ = await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
        for part in done - {stopping}:
            part.result()
        if stopping not in done:
            raise StateError(Reason.INTERNAL, f"a part of the {daemon.role} ended by itself")
    finally:
        for part in (stopping, *running):
            part.cancel()
        await asyncio.gather(stopping, *running, return_exceptions=True)


def _let_go(daemon: Daemon, lifeline: int) -> None:
    asyncio.get_running_loop().remove_reader(lifeline)
    log.info("the program that started this %s has gone", daemon.role)
    daemon.stop.set()


def _stop(daemon: Daemon, number: int) -> None:
    daemon.signal = number
    daemon.stop.set()
