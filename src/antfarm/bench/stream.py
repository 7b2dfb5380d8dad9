"""One answer, streamed from any OpenAI endpoint, with the time of every piece.

The client shares the machine with what it measures, so it does as little as it can: a line is searched
for the few bytes that matter, and only the one with the token counts is parsed.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import msgspec

from antfarm.bench.mix import Stay

COMPLETIONS = "/v1/completions"
ANSWER_S = 900.0  # the longest that one answer is waited for
Outcome = Literal["answered", "cancelled", "cut", "failed"]

_PIECE = re.compile(rb'"(?:text|content|reasoning_content)": ?"(?!")')
_USAGE = re.compile(rb'"usage": ?\{')
_ERROR = re.compile(rb'(?:data|error): ?\{"error"')
_DATA = re.compile(rb"data: ?")


@dataclass
class Trace:
    """What became of one request. Times are `time.perf_counter`'s.

    cancelled: the client left as planned; cut: the benchmark's time was up, or it was interrupted;
    failed: see `error`.
    Without the server's counts, which come last, a piece of text counts as one token.
    """

    prompt: int = 0  # tokens asked for
    turn: int = 0
    sent: float = 0.0
    ended: float = 0.0
    pieces: array[float] = field(default_factory=lambda: array("d"))  # arrivals of text
    outcome: Outcome = "failed"
    error: str = ""  # a short code: "429 queue-full", "ConnectError"
    message: str = ""
    usage: dict[str, Any] | None = None
    lines: list[bytes] = field(default_factory=list)  # with text, where they are kept
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # a piece came, or it has ended

    @property
    def first(self) -> float:
        """Seconds to the first piece; only of a trace that has one."""
        return self.pieces[0] - self.sent

    @property
    def prompt_tokens(self) -> int:
        if self.usage:
            return int(self.usage["prompt_tokens"])
        return self.prompt if self.pieces else 0

    @property
    def answer_tokens(self) -> int:
        return int(self.usage["completion_tokens"]) if self.usage else len(self.pieces)

    @property
    def cached_tokens(self) -> int:
        details = (self.usage or {}).get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens") or 0)

    async def grow(self, by: int) -> None:
        """Wait for so many more pieces, or for the end."""
        wanted = len(self.pieces) + by
        while len(self.pieces) < wanted and not self.ended:
            self.changed.clear()
            await self.changed.wait()

    @property
    def text(self) -> str:
        """The answer, of a trace that kept its lines."""
        said = (json.loads(_DATA.sub(b"", line, count=1))["choices"][0]["delta"] for line in self.lines)
        return "".join(delta.get("content") or "" for delta in said)


async def ask(
    http: httpx.AsyncClient,
    path: str,
    body: dict[str, Any],
    trace: Trace,
    *,
    stay: Stay | None = None,
    deadline: float = float("inf"),
    keep: bool = False,
) -> Trace:
    """Fill `trace` with one streamed answer. What goes wrong is said in it, not raised.

    `stay`: when to leave; `deadline`: when to stop in any case; `keep`: hold the answer's text.
    """
    trace.sent = time.perf_counter()
    leaves = trace.sent + stay.seconds if stay else float("inf")
    within = min(leaves, deadline, trace.sent + ANSWER_S) - trace.sent
    try:
        async with (
            asyncio.timeout(within),
            http.stream("POST", path, content=msgspec.json.encode(body), headers=_HEADERS) as response,
        ):
            if response.is_error:
                _refused(trace, response.status_code, await response.aread())
            else:
                await _read(response, trace, stay.pieces if stay else 0, keep)
    except TimeoutError:
        now = time.perf_counter()
        trace.outcome = "cancelled" if now >= leaves else "cut" if now >= deadline else "failed"
        trace.error = "timeout" if trace.outcome == "failed" else ""
    except httpx.HTTPError as error:
        trace.error, trace.message = type(error).__name__, str(error)
    except asyncio.CancelledError:
        trace.outcome = "cut"
        raise
    finally:
        trace.ended = time.perf_counter()
        trace.changed.set()
    return trace


_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


async def _read(response: httpx.Response, trace: Trace, most: int, keep: bool) -> None:
    """Read to the end of the stream, or until `most` pieces (0: no end) have come."""
    ended = False
    async for line in _lines(response):
        if _PIECE.search(line):
            trace.pieces.append(time.perf_counter())
            trace.changed.set()
            if keep:
                trace.lines.append(line)
            if len(trace.pieces) == most:
                trace.outcome = "cancelled"
                return
        if _ERROR.match(line):
            _refused(trace, 0, line[line.index(b"{") :])
            return
        if _USAGE.search(line):
            trace.usage = json.loads(_DATA.sub(b"", line, count=1))["usage"]
        ended = ended or line.startswith(b"data: [DONE]")
    if ended:
        trace.outcome = "answered"
    else:
        trace.error = "stream-ended"


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for data in response.aiter_raw():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line


def _refused(trace: Trace, status: int, body: bytes) -> None:
    """Take down an error: the HTTP status, if it is one's, and the code or type in the body."""
    word = ""
    try:
        told = json.loads(body)["error"]
        word = next((w for w in (told.get("code"), told.get("type")) if isinstance(w, str)), "")
        trace.message = str(told.get("message"))
    except (ValueError, LookupError, TypeError, AttributeError):
        trace.message = body[:200].decode(errors="replace")
    trace.error = f"{status or ''} {word}".strip() or "error"
