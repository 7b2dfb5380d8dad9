"""A task's answer as it grows: tokens in, events with whole characters and no stop string out."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antfarm.messages import TaskTokens, TokenLogprob
from antfarm.shard.sampler import log_softmax
from antfarm.shard.stops import StopStrings
from antfarm.types import Sampling

Finish = Literal["stop", "length", "cancelled", "error"]

if TYPE_CHECKING:  # followers import no tokenizer
    from antfarm.model.tokenizer import Tokenizer


class _Pending(NamedTuple):
    """A token that no event has counted yet; its text is `start .. end` of the answer's characters."""

    start: int
    end: int
    logprob: TokenLogprob | None


class Answer:
    """Turns sampled tokens into `TaskTokens`, and says when the answer ends and why.

    Every sampled token is counted once, the one that ends the answer included (an end-of-generation
    token, or those that spell a stop string). A token is counted by the event that releases the last
    of its text, so each event holds the text of exactly its tokens; only at the end of the answer
    does the text stop short. The end-of-generation token, and tokens wholly within a stop string,
    have no text in the answer and get no log probability.
    """

    def __init__(self, task: str, sampling: Sampling, tokenizer: Tokenizer, limit: int) -> None:
        from antfarm.model.tokenizer import TextStream

        self.finish: Finish | None = None
        self.count = 0  # tokens sampled
        self._task = task
        self._limit = limit
        self._top = sampling.logprobs
        self._ends = frozenset() if sampling.ignore_eos else tokenizer.eog
        self._tokenizer = tokenizer
        self._stream = TextStream(tokenizer)
        self._stops = StopStrings(sampling.stop)
        self._pending: deque[_Pending] = deque()
        self._text = ""  # released by the stop strings, not sent yet
        self._sent = 0  # characters
        self._counted = 0  # tokens that events have told of

    def push(self, token: int, row: NDArray[np.float32], *, last: bool = False) -> TaskTokens | None:
        """Add a token, sampled from the logits `row` [V]. The event to send, unless its text must wait.

        `last`: with this token the answer is complete.
        """
        self.count += 1
        if token in self._ends:
            self._end("stop")
            return self._event()
        start = self._sent + len(self._text) + len(self._stops.held)
        text = self._stream.push(token)
        logprob = None if self._top is None else self._logprob(token, row, self._top)
        self._pending.append(_Pending(start, start + len(text), logprob))
        released, stopped = self._stops.push(text)
        self._text += released
        if stopped:
            self.finish = "stop"
        elif last:
            self._end("stop")
        elif self.count >= self._limit:
            self._end("length")
        return self._event()

    def cut(self) -> TaskTokens | None:
        """End the answer here and now: the event with what was held back, if anything was.

        A character that is not whole yet is left out.
        """
        self._text += self._stops.flush()
        self.finish = "cancelled"
        return self._event()

    def _end(self, finish: Finish) -> None:
        released, stopped = self._stops.push(self._stream.flush())
        self._text += released if stopped else released + self._stops.flush()
        self.finish = "stop" if stopped else finish

    def _event(self) -> TaskTokens | None:
        released = last = self._sent + len(self._text)
        index, logprobs = self._counted, []
        while self._pending and (self.finish or self._pending[0].end <= released):
            token = self._pending.popleft()
            self._counted, last = self._counted + 1, token.end
            if token.logprob and (token.start < released or token.end <= released):
                logprobs.append(token.logprob)
        if self.finish:
            self._counted, last = self.count, released
        if self._counted == index:
            return None
        text, self._text = self._text[: last - self._sent], self._text[last - self._sent :]
        self._sent += len(text)
        return TaskTokens(self._task, index, self._counted - index, text, tuple(logprobs))

    def _logprob(self, token: int, row: NDArray[np.float32], top: int) -> TokenLogprob:
        chosen, best = log_softmax(row, token, top)
        return self._record(token, chosen, tuple(self._record(id, value) for id, value in best))

    def _record(self, token: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        raw = self._tokenizer.token_bytes(token)
        return TokenLogprob(token, raw.decode(errors="replace"), tuple(raw), logprob, top)
