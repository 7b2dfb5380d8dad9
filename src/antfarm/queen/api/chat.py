"""Task events as `/v1/chat/completions` says them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antfarm.messages import ChatMessage, TaskTokens, TokenLogprob
from antfarm.queen.api import response as body
from antfarm.queen.api.request import ChatRequest
from antfarm.queen.api.tally import Head, Tally, bounded, timings, usage
from antfarm.queen.tasks import TaskRequest


def tasks(request: ChatRequest, model: str) -> list[TaskRequest]:
    """One task for each answer asked for."""
    messages = tuple(ChatMessage(message.role, message.content) for message in request.messages)
    return [
        TaskRequest(model=model, sampling=request.sampling(choice), messages=messages)
        for choice in range(request.n)
    ]


class ChatForm:
    """A `tally.Format`. `logprobs` and `counts` say whether the client asked for them."""

    def __init__(self, head: Head, *, logprobs: bool, counts: bool) -> None:
        self._head = head
        self._logprobs = logprobs
        self._counts = counts

    def opening(self, tally: Tally) -> Iterable[body.ChatChunk]:
        yield self._chunk(self._choice(tally, body.Delta(role="assistant", content="")))

    def piece(self, tally: Tally, event: TaskTokens) -> body.ChatChunk:
        return self._chunk(self._choice(tally, body.Delta(content=event.text), event.logprobs))

    def closing(self, tally: Tally) -> body.ChatChunk:
        return self._chunk(self._choice(tally, body.Delta()))

    def usage(self, tallies: Sequence[Tally]) -> body.ChatChunk:
        return self._chunk().model_copy(update={"usage": usage(tallies), "timings": timings(tallies)})

    def whole(self, tallies: Sequence[Tally]) -> body.ChatCompletion:
        return body.ChatCompletion(
            id=self._head.id,
            object="chat.completion",
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.fingerprint,
            choices=[self._message(tally) for tally in tallies],
            usage=usage(tallies),
            timings=timings(tallies),
        )

    def _message(self, tally: Tally) -> body.ChatChoice:
        return body.ChatChoice(
            index=tally.index,
            message=body.AssistantMessage(role="assistant", content=tally.text, refusal=None),
            logprobs=_logprobs(tally.logprobs) if self._logprobs else None,
            finish_reason=tally.finish or "stop",
        )

    def _choice(
        self, tally: Tally, delta: body.Delta, logprobs: Sequence[TokenLogprob] = ()
    ) -> body.ChunkChoice:
        return body.ChunkChoice(
            index=tally.index,
            delta=delta,
            logprobs=_logprobs(logprobs) if logprobs and self._logprobs else None,
            finish_reason=tally.finish,
        )

    def _chunk(self, *choices: body.ChunkChoice) -> body.ChatChunk:
        chunk = body.ChatChunk(
            id=self._head.id,
            object="chat.completion.chunk",
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.fingerprint,
            choices=list(choices),
        )
        if self._counts:
            chunk.usage = None  # said aloud as null, as OpenAI does once counts are asked for
        return chunk


def _logprobs(tokens: Sequence[TokenLogprob]) -> body.ChatLogprobs:
    return body.ChatLogprobs(
        content=[
            body.TokenLogprob(
                **_alternative(token).model_dump(),
                top_logprobs=[_alternative(other) for other in token.top],
            )
            for token in tokens
        ],
        refusal=None,
    )


def _alternative(token: TokenLogprob) -> body.Alternative:
    return body.Alternative(token=token.text, bytes=list(token.bytes), logprob=bounded(token.logprob))
