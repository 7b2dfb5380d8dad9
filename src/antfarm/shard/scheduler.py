"""Which rows the next step computes: slots, lanes, and turns between prompts and answers. Pure.

Continuous batching: sequences take and leave slots between steps, in the order they came. Prompts are
read in chunks, the oldest first; but every second chunk may be of a prompt that has less left to read,
so that a question need not wait for the end of a book. Answers grow by one token a step meanwhile.

On a pipeline several steps are under way, so that every stage has one. Answers are then divided into
as many lanes as there are stages: a step takes its part of those whose last token is known, those that
wait longest first, so that lanes even out by themselves. A prompt's chunks follow each other like cars
of a train, since only the last one's result is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Batch, Copy
from antfarm.shard.pacing import Kind, Pacer, Turn
from antfarm.shard.sequence import Sequence
from antfarm.shard.slots import Slots
from antfarm.types import RunOptions

_NOTHING = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Step:
    """A batch, its tokens [rows], and the sequences in it: of a decode one for each row, of a chunk one."""

    batch: Batch
    tokens: NDArray[np.int32]
    sequences: tuple[Sequence, ...]
    turn: Turn


class Scheduler:
    """`options` with context and slots decided. `stages` of the pipeline, 1 for none."""

    def __init__(self, options: RunOptions, stages: int = 1) -> None:
        self.slots = Slots(options.slots, options.context)
        self._queue = options.queue
        self._pacer = Pacer(options.chunk, options.prefill_share, stages)
        self._lanes = stages
        self._most = stages + 1 if stages > 1 else 1  # one more than stages, so that none ever lacks a step
        self._prompts: list[Sequence] = []  # to be read, the oldest first; those that wait have no slot
        self._overtaken = False  # the last chunk was not of the oldest prompt
        self._answering: list[Sequence] = []  # those first whose last step is longest ago
        self._flying: deque[Step] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._flying or self._prompts or self._answering)

    @property
    def waiting(self) -> int:
        return sum(sequence.slot < 0 for sequence in self._prompts)

    @property
    def room(self) -> int:
        """How many more tasks may come before the queue is full."""
        return self._queue + self.slots.free - self.waiting

    @property
    def oldest(self) -> Step | None:
        """The step under way whose result comes next."""
        return self._flying[0] if self._flying else None

    def sequences(self) -> Iterator[Sequence]:
        """All that have not ended."""
        yield from self._answering
        yield from self._prompts

    def find(self, task: str) -> Sequence | None:
        return next((s for s in self.sequences() if s.task == task), None)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._prompts.append(sequence)

    def remove(self, sequence: Sequence, *, sound: bool = True) -> None:
        """Forget a sequence that has ended; its slot is free for the next step. Rows that are not `sound`
        will not be reused."""
        (self._prompts if sequence in self._prompts else self._answering).remove(sequence)
        if sequence.slot >= 0:
            self.slots.give_back(sequence.slot, sound=sound)

    def schedule(self) -> Step | None:
        """The next step, now under way. None when nothing can begin before a result comes."""
        prompts = any(self._readable())
        # A chunk pauses none whose own prompt is still on its way through the stages.
        answers = any(sequence.last >= 0 for sequence in self._answering)
        if len(self._flying) >= self._most or not (prompts or answers):
            return None
        if self._pacer.prefers(prompts=prompts, answers=answers) is Kind.PROMPT:
            step: Step | None = self._chunk(contested=answers)
        else:
            step = self._decode(contested=prompts)
        if step:
            self._flying.append(step)
        return step

    def finish(self, seconds: float) -> None:
        """The oldest step's result has come; it took `seconds` beyond the one before it."""
        step = self._flying.popleft()
        for sequence in step.sequences[: len(step.batch.outputs)]:  # of most chunks nothing was awaited
            sequence.awaited = sequence.pool is not None  # for a vector there is no next token
        self._pacer.end(step.turn, seconds)

    def _chunk(self, *, contested: bool) -> Step:
        """A prompt's next chunk. For an answer only its very last row is wanted, for a vector all are."""
        sequence = self._next_prompt()
        copy = self._admit(sequence) if sequence.slot < 0 else None
        start = sequence.filled
        lanes = min(self._lanes, len(self._answering)) if contested else 0
        tokens = sequence.prompt[start : start + self._pacer.chunk(lanes=lanes)]
        rows = len(tokens)
        self.slots.fill(sequence.slot, tokens)
        sequence.filled += rows
        if not sequence.prefilling:
            self._prompts.remove(sequence)
            self._answering.append(sequence)
            sequence.awaited = True
        batch = Batch(
            slots=np.full(rows, sequence.slot, np.int32),
            positions=np.arange(start, start + rows, dtype=np.int32),
            outputs=np.arange(_first_output(sequence, rows), rows, dtype=np.int32),
            copy=copy,
        )
        return Step(batch, tokens, (sequence,), self._pacer.begin(Kind.PROMPT, rows, contested=contested))

    def _next_prompt(self) -> Sequence:
        """The oldest, or every second time the one with the least to read."""
        oldest, shortest = next(self._readable()), min(self._readable(), key=lambda s: s.unread)
        self._overtaken = not self._overtaken and shortest is not oldest
        return shortest if self._overtaken else oldest

    def _readable(self) -> Iterator[Sequence]:
        """Prompts that have a slot, or for which one is free."""
        free = self.slots.free
        for sequence in self._prompts:
            if sequence.slot >= 0:
                yield sequence
            elif free:
                free -= 1
                yield sequence

    def _admit(self, sequence: Sequence) -> Copy | None:
        """Give it a slot, with what is reused there to be copied first."""
        reusable = sequence.prompt if sequence.pool is None else _NOTHING
        sequence.slot, sequence.filled, copy = self.slots.take(reusable)
        sequence.cached = sequence.filled
        return copy

    def _decode(self, *, contested: bool) -> Step | None:
        """One token of each sequence of a lane."""
        lanes = sum(step.turn.kind is Kind.ANSWER for step in self._flying)
        ready = [s for s in self._answering if not s.awaited]
        if not ready or lanes >= self._lanes:
            return None
        lane = ready[: -(-len(self._answering) // self._lanes)]
        self._answering = [s for s in self._answering if s not in lane] + lane
        lane.sort(key=lambda s: s.slot)
        batch = Batch(
            slots=np.array([s.slot for s in lane], np.int32),
            positions=np.array([s.filled for s in lane], np.int32),
            outputs=np.arange(len(lane), dtype=np.int32),
        )
        for sequence in lane:
            self.slots.fill(sequence.slot, sequence.last)
            sequence.filled += 1
            sequence.awaited = True
        tokens = np.array([s.last for s in lane], np.int32)
        return Step(
            batch, tokens, tuple(lane), self._pacer.begin(Kind.ANSWER, len(lane), contested=contested)
        )


def _first_output(sequence: Sequence, rows: int) -> int:
    """The first row of a prompt's chunk that is wanted."""
    if sequence.pool:
        return 0
    return rows if sequence.prefilling else rows - 1
