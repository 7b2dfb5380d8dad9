"""A queen for tests of the API: it plays written task events, and says who was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from antfarm.colony import refusals
from antfarm.errors import AntfarmError
from antfarm.messages import (
    ColonyStats,
    ModelStatus,
    TaskAccepted,
    TaskEvent,
    TaskFinished,
    TaskTokens,
    Timings,
    TokenLogprob,
)
from antfarm.queen.tasks import TaskRequest

Step = TaskEvent | AntfarmError | Exception | asyncio.Event
"""An event is played, an error raised, an `asyncio.Event` awaited."""


class ScriptedQueen:
    """Plays `script` to every task. `started` and `ended` are set as a task begins and ends."""

    def __init__(self, script: Sequence[Step], models: Sequence[ModelStatus] | None = None) -> None:
        self.script = script
        self.models = [model()] if models is None else list(models)
        self.retired: set[str] = set()
        self.requests: list[TaskRequest] = []
        self.running = 0
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    def status(self) -> Sequence[ModelStatus]:
        return self.models

    def missing(self, name: str) -> AntfarmError:
        return refusals.unknown(name, [model.model for model in self.models], retired=name in self.retired)

    def stats(self) -> ColonyStats:
        return ColonyStats(0.0, 0, (), tuple(self.models), ())

    async def run(self, request: TaskRequest) -> AsyncGenerator[TaskEvent, None]:
        self.requests.append(request)
        self.running += 1
        self.started.set()
        try:
            for step in self.script:
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step
        finally:
            self.running -= 1
            self.ended.set()


def model(name: str = "tiny", state: str = "ready") -> ModelStatus:
    return ModelStatus(
        model=name,
        source=name,
        state=state,
        mode="tensor",
        replica="r1",
        epoch=1,
        context=512,
        slots=1,
        shards=(),
        created=1.0e9,
    )


def logprob(text: str, value: float = -0.5, *top: TokenLogprob) -> TokenLogprob:
    return TokenLogprob(token=len(text), text=text, bytes=tuple(text.encode()), logprob=value, top=top)


def said(*pieces: str, prompt_tokens: int = 7, finish: str = "stop", logprobs: bool = False) -> list[Step]:
    """The script of an answer in these pieces, one token each."""
    tokens = [
        TaskTokens(
            task="t",
            index=index,
            count=1,
            text=piece,
            logprobs=(logprob(piece, -0.25, logprob(piece, -0.25), logprob("?", float("-inf"))),)
            if logprobs
            else (),
        )
        for index, piece in enumerate(pieces)
    ]
    timings = Timings(
        queued=0.1, prefill=0.5, decode=2.0, prompt_tokens=prompt_tokens, completion_tokens=len(pieces)
    )
    end = TaskFinished(task="t", index=len(pieces), finish=finish, timings=timings)  # type: ignore[arg-type]
    return [TaskAccepted(task="t", prompt_tokens=prompt_tokens), *tokens, end]
