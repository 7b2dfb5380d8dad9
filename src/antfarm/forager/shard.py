"""One shard process, supervised: commands to its stdin, events from its stdout, and its end noticed.

However a shard ends unasked, exactly one `ShardFailed` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Literal

import msgspec
import psutil

from antfarm.config import LINK_S, REQUEST_S, STOP_S
from antfarm.errors import Reason, StateError
from antfarm.messages import (
    Failure,
    ShardCommand,
    ShardEvent,
    ShardFailed,
    ShardLinked,
    ShardListening,
    ShardLoad,
    ShardLoaded,
    ShardOutput,
    ShardSpec,
    ShardStatus,
    ShardStop,
    TaskEvent,
)

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "antfarm.shard")
LINE_BYTES = 8 << 20  # the longest line that a shard may write
LOG_BYTES = 4 << 20  # a log larger than this is begun anew
# How long ggml's OpenMP threads (libgomp) spin at a barrier before they sleep; a decode step has hundreds of
# barriers. By default they spin for milliseconds, and two shards that share cores crawl: each spins on a core
# that the one it waits for needs. With this count a shard with its cores to itself is as fast as by default.
SPINS = "1000"

_DECODER: msgspec.json.Decoder[ShardOutput] = msgspec.json.Decoder(ShardOutput)

Report = Callable[[ShardEvent | TaskEvent], Awaitable[None]]


class ShardProcess:
    """A child process for one shard. Make it, then `start` it; `report` gets its events, in order."""

    def __init__(self, load: ShardLoad, log_file: Path, report: Report) -> None:
        self.load = load
        self.planned = load.plan.memory[load.shard].total
        self.stopping = False
        self._log_file = log_file
        self._report = report
        self._state: Literal["loading", "loaded", "linked", "failed"] = "loading"
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._listening: asyncio.Future[ShardListening] = asyncio.get_running_loop().create_future()
        self._writing = asyncio.Lock()
        self._ended = asyncio.Event()

    async def start(self, spec: ShardSpec) -> ShardListening:
        """Start the process and return once it listens. Raises StateError `shard-failed` or `timeout`."""
        with _open_log(self._log_file) as stderr:
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                limit=LINE_BYTES,
                env=_environment(),
                start_new_session=True,  # Ctrl-C in our terminal is ours to handle
            )
        self._reader = asyncio.create_task(self._read(self._process))
        try:
            await self.send(spec)
            return await asyncio.wait_for(asyncio.shield(self._listening), LINK_S)
        except TimeoutError:
            raise StateError(
                Reason.TIMEOUT,
                f"{spec.name} did not listen within {LINK_S:g} s: {self._last_words()}",
                hint=f"see {self._log_file}",
            ) from None

    async def send(self, command: ShardCommand) -> None:
        """Write a command. Raises StateError `shard-failed` when the process takes none any more."""
        if self.stopping or self._process is None:
            raise self._gone("has ended")
        await self._write(self._process, command)

    async def stop(self) -> None:
        """End it: asked, then killed. Returns when the process is no more; safe to call twice."""
        first, self.stopping = not self.stopping, True
        process = self._process
        if process is None or process.stdin is None:
            return
        if first:
            with contextlib.suppress(StateError):
                await self._write(process, ShardStop(self.load.replica, self.load.epoch))
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            log.warning("shard process %d does not end; killing it", process.pid)
            process.kill()
        await self._ended.wait()

    async def _write(self, process: asyncio.subprocess.Process, command: ShardCommand) -> None:
        if process.stdin is None or process.returncode is not None:
            raise self._gone("has ended")
        try:
            async with self._writing:
                process.stdin.write(msgspec.json.encode(command) + b"\n")
                await asyncio.wait_for(process.stdin.drain(), REQUEST_S)
        except TimeoutError:
            raise self._gone("reads no commands") from None
        except OSError as error:
            raise self._gone(f"takes no commands: {error}") from error

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def wait(self) -> None:
        """Return when the process has ended and its last event was reported."""
        await self._ended.wait()

    def status(self) -> ShardStatus:
        load = self.load
        pid = self._process.pid if self._process else 0
        return ShardStatus(
            load.replica, load.epoch, load.shard, pid, self._state, _resident(pid), self.planned
        )

    # ---- the process's words

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout
        try:
            while line := await process.stdout.readline():
                await self._take(line)
        except Exception:  # a line beyond the limit, or what nobody foresaw
            log.exception("a shard's words can't be passed on; killing it")
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # it would wait for its reader for ever
            await process.stdout.read()  # what is left of the pipe, so that it closes
        finally:
            await self._bury(process)

    async def _bury(self, process: asyncio.subprocess.Process) -> None:
        try:
            code = await process.wait()
            if not self._listening.done():
                self._listening.set_exception(self._gone(_exit_text(code)))
                self._listening.exception()  # seen, whether or not anyone waits
            if not self.stopping and self._state != "failed":
                await self._tell(self._died(code))
        finally:
            self._ended.set()

    async def _take(self, line: bytes) -> None:
        try:
            message = _DECODER.decode(line)
        except msgspec.DecodeError as error:
            log.warning("a shard wrote what is no message (%s): %r", error, line[:200])
            return
        if isinstance(message, ShardListening):
            if not self._listening.done():
                self._listening.set_result(message)
        else:
            await self._tell(message)

    async def _tell(self, event: ShardEvent | TaskEvent) -> None:
        if isinstance(event, ShardLoaded):
            self._state = "loaded"
        elif isinstance(event, ShardLinked):
            self._state = "linked"
        elif isinstance(event, ShardFailed):
            self._state = "failed"
        await self._report(event)

    def _died(self, code: int) -> ShardFailed:
        error = self._gone(_exit_text(code))
        return ShardFailed(self.load.replica, self.load.epoch, self.load.shard, Failure.of(error))

    def _gone(self, why: str) -> StateError:
        words = self._last_words()
        return StateError(
            Reason.SHARD_FAILED,
            f"its process {why}" + (f"; its last words: {words}" if words else ""),
            hint=f"see {self._log_file} on that host",
        )

    def _last_words(self) -> str:
        try:
            with self._log_file.open("rb") as file:
                file.seek(max(0, self._log_file.stat().st_size - 4096))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1][:500] if lines else ""


def _environment() -> dict[str, str]:
    """Ours, with the spinning bounded unless whoever runs this has a say in it."""
    own = dict(os.environ)
    if "OMP_WAIT_POLICY" not in own:
        own.setdefault("GOMP_SPINCOUNT", SPINS)
    return own


def _open_log(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    full = path.exists() and path.stat().st_size > LOG_BYTES
    return path.open("wb" if full else "ab")


def _exit_text(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by signal {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _resident(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss) if pid else 0
    except psutil.Error:
        return 0
