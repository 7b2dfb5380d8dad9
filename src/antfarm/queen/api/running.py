"""Running tasks for a client that may leave at any time: nothing it started outlives it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from antfarm.errors import AntfarmError
from antfarm.messages import TaskEvent
from antfarm.queen.api.errors import INTERNAL, error_body
from antfarm.queen.api.response import ErrorBody, Reply
from antfarm.queen.api.tally import Format, Tally, chunks

log = logging.getLogger(__name__)
T = TypeVar("T")
Events = AsyncGenerator[TaskEvent, None]
"""One task's events; closing it cancels the task."""

SEND_S = 60.0  # a client that takes no bytes for this long is cut off, and its tasks end
DONE = b"data: [DONE]\n\n"
GONE = 499  # the usual status, in logs only, for a client that left


class ClientGone(Exception):
    """The client closed its connection."""


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises `ClientGone`.

    The request's body must have been read: the next message then is the disconnect.
    """
    job = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({job, gone}, return_when=asyncio.FIRST_COMPLETED)
        if job.done():
            return job.result()
        raise ClientGone
    finally:
        await _end([job, gone])


async def merged(sources: Sequence[Events]) -> AsyncGenerator[tuple[int, TaskEvent], None]:
    """Events of several tasks as they come, each with its source's index.

    At most one event per source is held here: a slow reader slows the sources down.
    When one fails or the reader stops, all are cancelled.
    """
    if len(sources) == 1:  # as most requests have it: this spares a task for every token
        async with aclosing(sources[0]) as events:
            async for told in events:
                yield 0, told
        return
    waiting = {_next(source): index for index, source in enumerate(sources)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                index = waiting.pop(future)
                event = future.result()
                if event is not None:
                    waiting[_next(sources[index])] = index
                    yield index, event
    finally:
        await _end(waiting)
        for source in sources:
            await source.aclose()


async def whole(form: Format, tallies: Sequence[Tally], sources: Sequence[Events]) -> Reply:
    """The answer in one body, once all tasks are through."""
    async with aclosing(merged(sources)) as events:
        async for index, event in events:
            tallies[index].add(event)
    return form.whole(tallies)


class EventStream(Response):
    """A stream of server-sent events. Open it with `opened`, which waits for the first event: a task
    that fails before it has said anything is answered with a proper HTTP status."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames
        self._first = b""

    @classmethod
    async def opened(cls, frames: AsyncGenerator[bytes, None]) -> EventStream:
        stream = cls(frames)
        try:
            stream._first = await anext(frames)
        except BaseException:
            await frames.aclose()
            raise
        return stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._frames):
            try:
                await while_connected(receive, self._send(send))
            except (ClientGone, OSError, TimeoutError):
                log.info("a client left its stream, or took no bytes for %g s", SEND_S)

    async def _send(self, send: Send) -> None:
        await _within(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _within(send, _part(self._first))
        async for frame in self._frames:
            await _within(send, _part(frame))
        await _within(send, _part(b"", more=False))


async def frames(
    form: Format, tallies: Sequence[Tally], sources: Sequence[Events], *, counts: bool
) -> AsyncGenerator[bytes, None]:
    """The answer as server-sent events. What fails after the first event is said in the stream."""
    started = False
    try:
        async with aclosing(merged(sources)) as events:
            async for index, event in events:
                for chunk in chunks(form, tallies[index], event):
                    started = True
                    yield _frame(chunk)
        if counts:
            yield _frame(form.usage(tallies))
        yield DONE
    except AntfarmError as error:
        if not started:
            raise
        yield _frame(error_body(error))
    except Exception:
        if not started:
            raise
        log.exception("a stream failed")
        yield _frame(error_body(INTERNAL))


def _frame(body: Reply | ErrorBody) -> bytes:
    return b"data: " + body.model_dump_json(exclude_unset=True).encode() + b"\n\n"


def _part(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _within(send: Send, message: Message) -> None:
    async with asyncio.timeout(SEND_S):
        await send(message)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _next(source: Events) -> asyncio.Future[TaskEvent | None]:
    async def step() -> TaskEvent | None:
        return await anext(source, None)

    return asyncio.ensure_future(step())


async def _end(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel what still runs and wait until it has."""
    futures = list(futures)
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)
