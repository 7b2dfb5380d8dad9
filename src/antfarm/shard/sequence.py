"""One task on its way through the lead: its tokens, its place in the KV cache, its clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from antfarm.messages import Timings
from antfarm.shard.answer import Answer
from antfarm.shard.sampler import Sampler


@dataclass
class Clock:
    """Seconds of `time.perf_counter`, and what crossed the lead's links while decoding."""

    assigned: float
    started: float = 0.0  # first prefill step
    first: float = 0.0  # first token
    last: float = 0.0
    wire_bytes: int = 0
    waited: float = 0.0

    def timings(self, prompt: int, completion: int) -> Timings:
        return Timings(
            queued=self.started - self.assigned,
            prefill=self.first - self.started,
            decode=self.last - self.first,
            prompt_tokens=prompt,
            completion_tokens=completion,
            wire_bytes=self.wire_bytes,
            waited=self.waited,
        )


@dataclass(eq=False)
class Sequence:
    """A prompt and the answer that grows from it. `filled` KV rows of its slot are written, or will be
    by the step under way; what comes next is the rest of the prompt, then the last token."""

    task: str
    prompt: NDArray[np.int32]  # [tokens], at least one
    sampler: Sampler
    answer: Answer
    clock: Clock
    slot: int = -1  # none yet
    filled: int = 0
    last: int = field(default=-1)  # the token sampled last; none yet

    @property
    def prefilling(self) -> bool:
        return self.filled < len(self.prompt)
