"""An OpenAI endpoint, ours or another server's: which model to ask, and which fields it understands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from antfarm.bench.mix import token_ids, words
from antfarm.bench.stream import COMPLETIONS, Trace, ask
from antfarm.client import wire
from antfarm.errors import AntfarmError, Reason, StateError

FEW, MANY = 8, 72  # words in the two prompts that tell how long a word is
COUNTS: dict[str, Any] = {"stream_options": {"include_usage": True}}
EXTRAS: tuple[dict[str, Any], ...] = (COUNTS | {"ignore_eos": True}, COUNTS, {})
"""Fields that not every server takes; the first set that one takes is used."""


@asynccontextmanager
async def connected(url: str, key: str, streams: int) -> AsyncIterator[httpx.AsyncClient]:
    """A client for `streams` answers at once. `url` may end in /v1.

    Every request has a connection of its own: a lost one is the server's doing, never an old one's end.
    """
    limits = httpx.Limits(max_connections=streams + 1, max_keepalive_connections=0)
    options = wire.options(url.rstrip("/").removesuffix("/v1"), key)
    async with httpx.AsyncClient(**options, limits=limits) as http:
        yield http


async def only_model(http: httpx.AsyncClient) -> str:
    """The model that the endpoint offers. Raises `model-unknown` unless there is exactly one."""
    with wire.connection_errors(str(http.base_url)):
        response = await http.get("/v1/models")
        wire.check(response)
    try:
        names = [str(card["id"]) for card in response.json()["data"]]
    except (ValueError, LookupError, TypeError) as error:
        raise StateError(
            Reason.BAD_SETTING, f"{response.url} lists no models", hint="look at the address (--url)"
        ) from error
    if len(names) == 1:
        return names[0]
    raise StateError(
        Reason.MODEL_UNKNOWN,
        f"the endpoint offers {', '.join(names) or 'no model'}",
        hint="name one with --model" if names else "load one first",
    )


@dataclass(frozen=True)
class Dialect:
    """How a model is asked. A prompt of n words has about `opening` + n * `word` tokens."""

    model: str
    extras: dict[str, Any] = field(default_factory=lambda: EXTRAS[0])
    opening: float = 0.0
    word: float = 1.0
    counts: bool = False  # the server says how many tokens there were

    def completion(self, seed: int, number: int, prompt: int, answer: int) -> dict[str, Any]:
        """A plain completion of `prompt` token ids."""
        return self._body(answer, prompt=token_ids(seed, number, prompt))

    def chat(self, history: list[dict[str, str]], answer: int) -> dict[str, Any]:
        return self._body(answer, messages=history)

    def message(self, seed: int, number: int, tokens: int) -> dict[str, str]:
        """A user's message that makes a prompt of about `tokens` tokens."""
        count = max(1, round((tokens - self.opening) / self.word))
        return {"role": "user", "content": words(seed, number, count)}

    def _body(self, answer: int, **asked: Any) -> dict[str, Any]:
        given = {"model": self.model, "max_tokens": answer, "temperature": 0, "stream": True}
        return given | self.extras | asked


async def settle(http: httpx.AsyncClient, model: str, *, chat: bool) -> Dialect:
    """Ask a little, which also warms the server up. Raises what the endpoint answers to the plainest form."""
    probe = Trace()
    for extras in EXTRAS:
        dialect = Dialect(model, extras)
        probe = await _probe(http, dialect, chat, FEW)
        if not probe.error.startswith(("400", "422")):
            break
    if probe.outcome != "answered":
        raise _unusable(http, probe)
    if probe.usage is None or not chat:
        return replace(dialect, counts=probe.usage is not None)
    longer = await _probe(http, dialect, chat, MANY)
    if longer.outcome != "answered":
        raise _unusable(http, longer)
    word = max(0.5, (longer.prompt_tokens - probe.prompt_tokens) / (MANY - FEW))
    return replace(dialect, counts=True, word=word, opening=probe.prompt_tokens - FEW * word)


async def _probe(http: httpx.AsyncClient, dialect: Dialect, chat: bool, count: int) -> Trace:
    if chat:
        said = [{"role": "user", "content": words(0, count, count)}]
        return await ask(http, wire.CHAT, dialect.chat(said, 2), Trace())
    return await ask(http, COMPLETIONS, dialect.completion(0, count, count, 2), Trace())


def _unusable(http: httpx.AsyncClient, probe: Trace) -> AntfarmError:
    code = probe.error.split()[-1] if probe.error else ""
    reason = Reason(code) if code in list(Reason) else Reason.COLONY_DOWN
    return StateError(
        reason,
        f"{http.base_url} does not answer: {probe.error} {probe.message}".rstrip(),
        hint="look at the address (--url), the key (--api-key-file) and the model (--model)",
    )
