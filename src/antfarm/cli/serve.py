"""What the queen and the forager share as daemons: one per role, a log, a ready line, a bounded end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import typer

from antfarm.cli.logs import log_to
from antfarm.client import state
from antfarm.client.launch import Ready, tell_ready
from antfarm.client.state import Process
from antfarm.config import STOP_S, Home
from antfarm.errors import AntfarmError, Reason, StateError
from antfarm.messages import Failure

END_S = 2 * STOP_S  # from the signal to the end

log = logging.getLogger(__name__)


@dataclass
class Daemon:
    """One daemon's dealings with its home, its starter and its signals."""

    home: Home
    role: str
    name: str
    announce: Callable[[Process], None]  # into the home's state
    ready_fd: int  # of the starter's pipe; -1 in the foreground
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    signal: int = 0
    is_ready: bool = False

    @property
    def detached(self) -> bool:
        return self.ready_fd >= 0

    def ready(self, entry: Process) -> None:
        """Everything listens: say so in the home, and to the starter."""
        self.announce(entry)
        self.is_ready = True
        if self.detached and not tell_ready(self.ready_fd, Ready(entry)):
            raise StateError(Reason.CANCELLED, "the process that started this daemon has gone")


def run_daemon(
    home: Home, role: str, name: str, ready_fd: int, body: Callable[[Daemon], Awaitable[None]]
) -> None:
    """Run `body` until SIGTERM or Ctrl-C sets its `stop`, or it ends by itself.

    Raises `StateError` `colony-exists` when this role (and name) is taken in the home.
    """
    log_to(home.logs / f"{'-'.join(filter(None, (role, name)))}.log" if ready_fd >= 0 else None)
    daemon = None
    try:
        with state.claim(home, role, name) as announce:
            daemon = Daemon(home, role, name, announce, ready_fd)
            asyncio.run(_until_stopped(daemon, body))
    except AntfarmError as error:
        log.error("%s", error)
        if ready_fd >= 0 and not (daemon and daemon.is_ready):
            tell_ready(ready_fd, Failure.of(error))
        raise
    if daemon.signal == signal.SIGINT:
        raise typer.Exit(130)


async def _until_stopped(daemon: Daemon, body: Callable[[Daemon], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, _stop, daemon, number)
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


def _stop(daemon: Daemon, number: int) -> None:
    daemon.signal = number
    daemon.stop.set()
