"""One task on its way through the lead: its tokens, its place in the KV cache, its clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antfarm.messages import Timings
from antfarm.shard.answer import Answer
from antfarm.shard.pooling import Pool
from antfarm.shard.sampler import Sampler


class Clock:
    """Seconds of `time.perf_counter`, and what crossed the lead's links while decoding."""

    def __init__(self, now: float) -> None:
        self._assigned = self._started = self._first = self._last = now
        self._begun = self._answering = False
        self._wire_bytes = 0
        self._waited = 0.0

    def begin(self, now: float) -> bool:
        """A step with rows of this sequence begins. Whether it is the first one."""
        if self._begun:
            return False
        self._begun = True
        self._started = self._first = self._last = now
        return True

    def crossed(self, wire_bytes: int, waited: float) -> None:
        """What a step with rows of this sequence cost the links."""
        if self._answering:
            self._wire_bytes += wire_bytes
            self._waited += waited

    def token(self, now: float) -> None:
        """A token was sampled."""
        self._last = now
        if not self._answering:
            self._answering = True
            self._first = now

    def timings(self, prompt: int, completion: int, cached: int) -> Timings:
        return Timings(
            queued=self._started - self._assigned,
            prefill=self._first - self._started,
            decode=self._last - self._first,
            prompt_tokens=prompt,
            completion_tokens=completion,
            wire_bytes=self._wire_bytes,
            waited=self._waited,
            cached_tokens=cached,
        )


@dataclass(eq=False)
class Sequence:
    """A prompt and the answer that grows from it. `filled` KV rows of its slot are written, or will be
    by the steps under way; what comes next is the rest of the prompt, then the last token."""

    task: str
    prompt: NDArray[np.int32]  # [tokens], at least one
    sampler: Sampler
    answer: Answer
    clock: Clock
    deadline: float = math.inf  # a time of `time.perf_counter`
    slot: int = -1  # none yet
    filled: int = 0
    cached: int = 0  # of these, rows that a slot held already
    last: int = -1  # the token sampled last; none yet
    awaited: bool = False  # its next token is under way
    tools: str = ""  # the form in which the answer calls tools, if it may
    pool: Pool | None = None  # of a prompt that is read for its vector, and has no answer

    @property
    def unread(self) -> int:
        """Tokens of the prompt that no step computes yet."""
        return max(0, len(self.prompt) - self.filled)

    @property
    def prefilling(self) -> bool:
        return self.unread > 0
