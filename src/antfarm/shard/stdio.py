"""The shard's line to its forager: JSON lines of commands in, of events out, and nothing else.

Events are written by the thread that has them, blocking: a forager that stops reading slows its
shard down instead of growing a queue in it. When the forager goes, its end of stdin closes and
the process ends at once, whatever it is doing: nothing here outlives the forager, and the kernel
closes the links, which tells the peers.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from antfarm.errors import AntfarmError, Reason
from antfarm.messages import ShardCommand, ShardOutput, ShardStop

if TYPE_CHECKING:  # followers import no tokenizer
    from antfarm.shard.intake import Prepared

_WRITE_S = 0.5  # that an ending process waits for a line half written


class Stdio:
    """Commands from `source` and events to `sink`, both file descriptors that are this object's own."""

    def __init__(self, source: int, sink: int) -> None:
        self._source = os.fdopen(source, "rb")
        self._sink = sink
        self._lock = threading.Lock()
        self._decoder: msgspec.json.Decoder[ShardCommand] = msgspec.json.Decoder(ShardCommand)
        self._commands: queue.SimpleQueue[ShardCommand | Prepared] = queue.SimpleQueue()

    @classmethod
    def claim(cls) -> Stdio:
        """Take the process's stdin and stdout: whoever prints from now on prints to stderr."""
        source, sink = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        sys.stdout.flush()
        os.dup2(2, 1)
        return cls(source, sink)

    def read(self) -> ShardCommand | None:
        """The next command, or None at the end. Raises `invalid-request` for a line that is none.

        Not to be called once `listen` was.
        """
        line = self._source.readline()
        if not line:
            return None
        try:
            return self._decoder.decode(line)
        except msgspec.DecodeError as error:
            raise AntfarmError(
                Reason.INVALID_REQUEST,
                f"a line on a shard's stdin is no command: {error}",
                hint="a shard is started by its forager, of the same version",
            ) from error

    def listen(self, failed: Callable[[AntfarmError], None]) -> None:
        """Read commands in the background from here on. The end of stdin, or `ShardStop`, ends the
        process; a line that is no command does too, after `failed` was called with the error."""
        threading.Thread(target=self._listen, args=(failed,), name="stdin", daemon=True).start()

    def post(self, prepared: Prepared) -> None:
        """Put what another thread has prepared among the commands."""
        self._commands.put(prepared)

    def get(self, timeout: float) -> ShardCommand | Prepared | None:
        """The next command; None when there is none within `timeout` seconds."""
        try:
            return self._commands.get(timeout=timeout) if timeout else self._commands.get_nowait()
        except queue.Empty:
            return None

    def emit(self, *messages: ShardOutput) -> None:
        """Write a line for each, at once. Raises OSError when the forager reads no more."""
        lines = b"".join(msgspec.json.encode(message) + b"\n" for message in messages)
        with self._lock:
            while lines:
                lines = lines[os.write(self._sink, lines) :]

    def _listen(self, failed: Callable[[AntfarmError], None]) -> None:
        code = 1
        try:
            while (command := self.read()) is not None and not isinstance(command, ShardStop):
                self._commands.put(command)
            code = 0
        except AntfarmError as error:
            failed(error)
        finally:
            self._lock.acquire(timeout=_WRITE_S)
            os._exit(code)
