"""Asynchronous work for callers without an event loop: one loop, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, TypeVar

from antfarm.config import STOP_S

T = TypeVar("T")


class Blocking:
    """Works wherever it is called, inside someone else's event loop too: a notebook's. Ended with `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="antfarm", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Ctrl-C cancels it, and is raised when it has ended."""
        begun: list[asyncio.Task[T]] = []
        ended = threading.Event()

        def begin() -> None:
            task = self._loop.create_task(work)
            task.add_done_callback(lambda _: ended.set())
            begun.append(task)

        try:
            self._loop.call_soon_threadsafe(begin)
            ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in begun])
            ended.wait(STOP_S)
            raise
        return begun[0].result()

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The items, one by one. Closing the iterator closes theirs."""
        end: Any = object()
        try:
            while (item := self.run(_next(items, end))) is not end:
                yield item
        finally:
            if not self._loop.is_closed():
                self.run(items.aclose())

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        self.run(_cancel_others())
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _next(items: AsyncGenerator[T, None], end: T) -> T:
    return await anext(items, end)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
