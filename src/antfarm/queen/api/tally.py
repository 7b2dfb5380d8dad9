"""Answers as they grow out of task events, and what the chat and the plain form both need of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from antfarm.errors import AntfarmError, Reason
from antfarm.messages import TaskAccepted, TaskEvent, TaskFinished, TaskTokens, Timings, TokenLogprob
from antfarm.queen.api.response import Finish, PromptDetails, Reply, Usage
from antfarm.queen.api.response import Timings as TimingsBody

LEAST_LOGPROB = -9999.0  # OpenAI's stand-in for minus infinity, which JSON can't hold


@dataclass(frozen=True)
class Head:
    """What one request's answer, and each chunk of it, starts with."""

    id: str
    created: int  # seconds since the epoch
    model: str
    fingerprint: str | None = None


@dataclass
class Tally:
    """One choice so far. `prompt` is the index of the prompt it answers."""

    index: int
    prompt: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    logprob_chars: int = 0  # that the tokens in `logprobs` stand for; the text may lag behind them
    finish: Finish | None = None
    timings: Timings | None = None
    tools: str = ""  # the form in which it calls tools, if it may

    def add(self, event: TaskEvent) -> None:
        """Take one event. Raises the task's own failure, and `cancelled` when the colony ended it."""
        match event:
            case TaskAccepted():
                self.prompt_tokens = event.prompt_tokens
                self.tools = event.tools
            case TaskTokens():
                self.tokens = event.index + event.count
                self.text += event.text
                self.logprobs.extend(event.logprobs)
                self.logprob_chars += sum(len(token.text) for token in event.logprobs)
            case TaskFinished():
                self.tokens = event.index
                self.timings = event.timings
                self.finish = finish_of(event)


class Format(Protocol):
    """One of OpenAI's two forms: pure functions from tallies and events to bodies."""

    def opening(self, tally: Tally) -> Iterable[Reply]:
        """Chunks before the first text of a choice."""

    def piece(self, tally: Tally, event: TaskTokens) -> Iterable[Reply]:
        """Chunks of what has come. The tally holds what came before it."""

    def closing(self, tally: Tally) -> Iterable[Reply]:
        """The last chunks of a choice, the very last with its finish reason."""

    def usage(self, tallies: Sequence[Tally]) -> Reply:
        """The chunk without choices that ends a stream for clients that asked for token counts."""

    def whole(self, tallies: Sequence[Tally]) -> Reply:
        """The answer in one body."""


def chunks(form: Format, tally: Tally, event: TaskEvent) -> Iterable[Reply]:
    """Take one event into the tally and say it to the client."""
    match event:
        case TaskAccepted():
            tally.add(event)
            yield from form.opening(tally)
        case TaskTokens():
            if event.text or event.logprobs:
                yield from form.piece(tally, event)
            tally.add(event)
        case TaskFinished():
            tally.add(event)
            yield from form.closing(tally)


def usage(tallies: Sequence[Tally]) -> Usage:
    """Token counts of a request: a prompt with several answers counts once."""
    prompts = {tally.prompt: tally.prompt_tokens for tally in tallies}
    prompt, answer = sum(prompts.values()), sum(tally.tokens for tally in tallies)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=answer,
        total_tokens=prompt + answer,
        prompt_tokens_details=PromptDetails(cached_tokens=_cached(tallies)),
    )


def timings(tallies: Sequence[Tally]) -> TimingsBody | None:
    """Of the choice that took longest. The first token is the prompt's work, the others are the answer's."""
    measured = [tally.timings for tally in tallies if tally.timings]
    if not measured:
        return None
    slowest = max(measured, key=lambda one: one.queued + one.prefill + one.decode)
    return TimingsBody(
        queued_s=slowest.queued,
        prompt_s=slowest.prefill,
        answer_s=slowest.decode,
        prompt_tokens_per_second=_rate(slowest.prompt_tokens - slowest.cached_tokens, slowest.prefill),
        answer_tokens_per_second=_rate(slowest.completion_tokens - 1, slowest.decode),
        wire_bytes=slowest.wire_bytes,
        waited_s=slowest.waited,
    )


def _cached(tallies: Sequence[Tally]) -> int:
    """Of each prompt, what none of its answers had to read."""
    cached: dict[int, int] = {}
    for tally in tallies:
        tokens = tally.timings.cached_tokens if tally.timings else 0
        cached[tally.prompt] = min(tokens, cached.get(tally.prompt, tokens))
    return sum(cached.values())


def bounded(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def finish_of(event: TaskFinished) -> Finish:
    """Why a task ended. Raises its failure, and `cancelled` when the colony ended it."""
    if event.finish == "stop" or event.finish == "length":
        return event.finish
    if event.failure:
        raise event.failure.error()
    if event.finish == "cancelled":
        raise AntfarmError(Reason.CANCELLED, "the colony ended this answer before it was complete")
    raise AntfarmError(Reason.INTERNAL, "the answer failed without a reason")


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 2) if count > 0 and seconds > 0 else 0.0
