"""One loaded model, as Python asks it: whole answers and streams, blocking and asynchronous."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import httpx

from antfarm.client import wire
from antfarm.client.blocking import Blocking

Chunk = dict[str, Any]
Messages = Sequence[Mapping[str, str]]
"""A conversation: `[{"role": "user", "content": "..."}, ...]`; roles are system, user and assistant."""


class Settings(TypedDict, total=False):
    """How an answer is made; what is left out takes the API's default. Names are OpenAI's and llama.cpp's."""

    temperature: float  # 0 always takes the likeliest token
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int  # the same seed gives the same text
    max_tokens: int
    stop: str | list[str]
    ignore_eos: bool  # go on after the end token


@dataclass(frozen=True)
class Answer:
    """What a model said; `str()` is its text. `finish_reason`: stop, or length when it was cut short."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    tokens_per_second: float  # of the answer
    prompt_tokens_per_second: float

    def __str__(self) -> str:
        return self.text


class Model:
    """A model of a `Colony`; made by `Colony.load` and `Colony.model`.

    A question is text, or a conversation of `Messages`. `aask` and `astream` go with `async with`.
    Errors are `AntfarmError` with the API's reason: `context-overflow`, `shard-missing`, ...
    """

    def __init__(self, name: str, http: httpx.AsyncClient, blocking: Callable[[], Blocking]) -> None:
        self.name = name
        self._http = http
        self._blocking = blocking

    def __repr__(self) -> str:
        return f"Model({self.name!r})"

    def ask(self, question: str | Messages, **settings: Unpack[Settings]) -> Answer:
        """The whole answer."""
        return self._blocking().run(self.aask(question, **settings))

    def stream(self, question: str | Messages, **settings: Unpack[Settings]) -> Generator[str, None, None]:
        """The answer's text in pieces, as they come. Closing the iterator ends it at the model, too."""
        return self._blocking().iterate(self.astream(question, **settings))

    async def aask(self, question: str | Messages, **settings: Unpack[Settings]) -> Answer:
        """As `ask`."""
        async with aclosing(self._chunks(question, settings)) as chunks:
            return _answer([chunk async for chunk in chunks])

    async def astream(
        self, question: str | Messages, **settings: Unpack[Settings]
    ) -> AsyncGenerator[str, None]:
        """As `stream`."""
        async with aclosing(self._chunks(question, settings)) as chunks:
            async for chunk in chunks:
                if piece := _text(chunk):
                    yield piece

    async def _chunks(self, question: str | Messages, settings: Settings) -> AsyncGenerator[Chunk, None]:
        """A whole answer is asked for as a stream as well: however long it takes, it is never silent."""
        messages = [{"role": "user", "content": question}] if isinstance(question, str) else list(question)
        body = wire.streaming({"model": self.name, "messages": messages, **settings})
        with wire.connection_errors(str(self._http.base_url)):
            async with self._http.stream("POST", wire.CHAT, json=body) as response:
                if response.is_error:
                    await response.aread()
                wire.check(response)
                async for line in response.aiter_lines():
                    if chunk := wire.chunk(line):
                        yield chunk


def _text(chunk: Chunk) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def _answer(chunks: Sequence[Chunk]) -> Answer:
    """Of all chunks: the last one counts, the one before it ends the only choice."""
    *said, end, counts = chunks
    usage, timings = counts["usage"], counts.get("timings") or {}
    return Answer(
        text="".join(map(_text, said)),
        finish_reason=end["choices"][0]["finish_reason"],
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        tokens_per_second=timings.get("answer_tokens_per_second", 0.0),
        prompt_tokens_per_second=timings.get("prompt_tokens_per_second", 0.0),
    )
