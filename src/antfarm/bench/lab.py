"""What the scenarios of `antc bench batch` work with: requests to the private colony, one or many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

import httpx

from antfarm.bench.colony import Split, Subject, splits
from antfarm.bench.endpoint import Dialect
from antfarm.bench.stats import summary
from antfarm.bench.stream import ANSWER_S, COMPLETIONS, Trace, ask
from antfarm.errors import AntfarmError, Reason


@dataclass(frozen=True)
class BatchBench:
    """Lengths in tokens. `scenarios` are names in `batch.SCENARIOS`; empty takes all."""

    subject: Subject
    hosts: int = 2
    streams: int = 8
    prompt: int = 16
    answer: int = 64
    disturbed: int = 4  # streams that decode while the long prompt is read
    long_prompt: int = 2000
    quiet: int = 32  # tokens that they decode before
    history: int = 1000  # of the chat
    rounds: int = 3
    scenarios: tuple[str, ...] = ()

    @property
    def context(self) -> int:
        """Of a slot: the longest scenario, and room for streams that decode all along."""
        return max(self.long_prompt + 8, self.history + 256, self.prompt + self.answer)


class Lab:
    """What scenarios work with: a connection, and prompts that no cache has seen."""

    def __init__(self, bench: BatchBench, http: httpx.AsyncClient) -> None:
        self.bench = bench
        self.http = http
        self.unsplit = splits(1)[0]
        self._numbers = count(1000)

    def number(self) -> int:
        """One that no prompt was made of yet."""
        return next(self._numbers)

    async def complete(self, split: Split, prompt: int, answer: int, trace: Trace | None = None) -> Trace:
        """One plain completion, streamed. Raises when it fails."""
        body = Dialect(split.served).completion(1, self.number(), prompt, answer)
        return sound(await ask(self.http, COMPLETIONS, body, trace or Trace(prompt=prompt)))

    async def together(self, split: Split, streams: int) -> float:
        """Answer tokens a second of so many equal requests, sent at once."""
        prompt, answer = self.bench.prompt, self.bench.answer
        traces = await asyncio.gather(*(self.complete(split, prompt, answer) for _ in range(streams)))
        return summary(traces).answer_rate

    @asynccontextmanager
    async def decoding(self, split: Split, streams: int) -> AsyncIterator[list[Trace]]:
        """So many streams that decode all through the block; their traces fill meanwhile."""
        length = self.bench.context - self.bench.prompt - 1
        traces = [Trace(prompt=self.bench.prompt) for _ in range(streams)]
        tasks = [asyncio.create_task(self.complete(split, self.bench.prompt, length, t)) for t in traces]
        try:
            await grow(traces, 1)
            yield traces
            for task in tasks:
                if task.done():
                    raise AntfarmError(
                        Reason.BAD_SETTING,
                        f"a stream of {len(task.result().pieces)} pieces ended before the prompt was read",
                        hint="measure with a longer prompt, which makes streams longer as well",
                    )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def grow(traces: Iterable[Trace], by: int) -> None:
    """Wait until every stream has brought so many more pieces, or has ended."""
    async with asyncio.timeout(ANSWER_S):
        await asyncio.gather(*(trace.grow(by) for trace in traces))


def sound(trace: Trace) -> Trace:
    if trace.outcome != "answered":
        code = trace.error.split()[-1]
        raise AntfarmError(
            Reason(code) if code in list(Reason) else Reason.INTERNAL,
            f"a request failed: {trace.error} {trace.message}",
        )
    return trace
