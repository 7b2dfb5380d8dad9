"""Task events as `/v1/completions` says them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from antfarm.errors import Reason, RequestError
from antfarm.messages import TaskTokens, TokenLogprob
from antfarm.queen.api import response as body
from antfarm.queen.api.fields import MAX_TASKS, Prompt
from antfarm.queen.api.request import TextRequest
from antfarm.queen.api.tally import Head, Tally, bounded, timings, usage
from antfarm.queen.tasks import TaskRequest


def tasks(request: TextRequest, model: str) -> list[TaskRequest]:
    """One task for each answer to each prompt, in the order of OpenAI's choices: prompt by prompt."""
    if len(request.prompt) * request.n > MAX_TASKS:
        raise RequestError(
            Reason.INVALID_REQUEST, f"n: prompts times n is at most {MAX_TASKS} in one request", param="n"
        )
    return [_task(request, model, prompt, choice) for prompt in request.prompt for choice in range(request.n)]


def _task(request: TextRequest, model: str, prompt: Prompt, choice: int) -> TaskRequest:
    text, tokens = (prompt, None) if isinstance(prompt, str) else (None, prompt)
    return TaskRequest(
        model=model,
        sampling=request.sampling(choice),
        text=text,
        tokens=tokens,
        wanted=request.wanted(),
        deadline=request.timeout,
    )


class TextForm:
    """A `tally.Format`. `logprobs` and `counts` say whether the client asked for them."""

    def __init__(self, head: Head, *, logprobs: bool, counts: bool) -> None:
        self._head = head
        self._logprobs = logprobs
        self._counts = counts

    def opening(self, tally: Tally) -> Iterable[body.TextCompletion]:
        return ()

    def piece(self, tally: Tally, event: TaskTokens) -> Iterable[body.TextCompletion]:
        logprobs = self._said(event.logprobs, tally.logprob_chars) if event.logprobs else None
        yield self._chunk(self._choice(tally, event.text, logprobs))

    def closing(self, tally: Tally) -> Iterable[body.TextCompletion]:
        yield self._chunk(self._choice(tally, "", None))

    def usage(self, tallies: Sequence[Tally]) -> body.TextCompletion:
        return self._chunk().model_copy(update={"usage": usage(tallies), "timings": timings(tallies)})

    def whole(self, tallies: Sequence[Tally]) -> body.TextCompletion:
        choices = [self._choice(tally, tally.text, self._said(tally.logprobs, 0)) for tally in tallies]
        return self._body(choices).model_copy(update={"usage": usage(tallies), "timings": timings(tallies)})

    def _said(self, tokens: Sequence[TokenLogprob], offset: int) -> body.TextLogprobs | None:
        return _logprobs(tokens, offset) if self._logprobs else None

    def _choice(self, tally: Tally, text: str, logprobs: body.TextLogprobs | None) -> body.TextChoice:
        return body.TextChoice(index=tally.index, text=text, logprobs=logprobs, finish_reason=tally.finish)

    def _chunk(self, *choices: body.TextChoice) -> body.TextCompletion:
        chunk = self._body(choices)
        if self._counts:
            chunk.usage = None  # said aloud as null, as OpenAI does once counts are asked for
        return chunk

    def _body(self, choices: Sequence[body.TextChoice]) -> body.TextCompletion:
        return body.TextCompletion(
            id=self._head.id,
            object="text_completion",
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.fingerprint,
            choices=list(choices),
        )


def _logprobs(tokens: Sequence[TokenLogprob], offset: int) -> body.TextLogprobs:
    """`text_offset` counts characters of the answer; `offset` is where the first token stands."""
    ends = accumulate((len(token.text) for token in tokens), initial=offset)
    return body.TextLogprobs(
        tokens=[token.text for token in tokens],
        token_logprobs=[bounded(token.logprob) for token in tokens],
        top_logprobs=[{other.text: bounded(other.logprob) for other in token.top} for token in tokens],
        text_offset=list(ends)[:-1],
    )
