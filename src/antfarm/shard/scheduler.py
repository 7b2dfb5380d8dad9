"""Which rows the next step computes: slots, lanes, and turns between prompts and answers. Pure.

Continuous batching: sequences take and leave slots between steps, in the order they came. Prompts are
read one after the other, in chunks; the others' answers grow by one token a step meanwhile.

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
        self._pacer = Pacer(options.chunk, options.prefill_share)
        self._lanes = stages
        self._most = stages + 1 if stages > 1 else 1  # one more than stages, so that none ever lacks a step
        self._waiting: deque[Sequence] = deque()
        self._reading: Sequence | None = None
        self._answering: list[Sequence] = []  # those first whose last step is longest ago
        self._flying: deque[Step] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._flying or self._reading or self._answering or self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def room(self) -> int:
        """How many more tasks may come before the queue is full."""
        return self._queue + self.slots.free - len(self._waiting)

    @property
    def oldest(self) -> Step | None:
        """The step under way whose result comes next."""
        return self._flying[0] if self._flying else None

    def sequences(self) -> Iterator[Sequence]:
        """All that have not ended."""
        yield from self._answering
        if self._reading:
            yield self._reading
        yield from self._waiting

    def find(self, task: str) -> Sequence | None:
        return next((s for s in self.sequences() if s.task == task), None)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence, *, sound: bool = True) -> None:
        """Forget a sequence that has ended; its slot is free for the next step. Rows that are not `sound`
        will not be reused."""
        if sequence.slot < 0:
            self._waiting.remove(sequence)
            return
        if sequence is self._reading:
            self._reading = None
        else:
            self._answering.remove(sequence)
        self.slots.give_back(sequence.slot, sound=sound)

    def schedule(self) -> Step | None:
        """The next step, now under way. None when nothing can begin before a result comes."""
        prompts = self._reading is not None or bool(self._waiting and self.slots.free)
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
        """The next chunk of the prompt that is being read, else of the first that waits. For an answer only
        its very last row is wanted, for a vector all are."""
        sequence, copy = self._reading, None
        if sequence is None:
            sequence, copy = self._admit()
        start = sequence.filled
        lanes = min(self._lanes, len(self._answering)) if contested else 0
        tokens = sequence.prompt[start : start + self._pacer.chunk(lanes=lanes)]
        rows = len(tokens)
        self.slots.fill(sequence.slot, tokens)
        sequence.filled += rows
        self._reading = sequence if sequence.prefilling else None
        if not sequence.prefilling:
            self._answering.append(sequence)
            sequence.awaited = True
        batch = Batch(
            slots=np.full(rows, sequence.slot, np.int32),
            positions=np.arange(start, start + rows, dtype=np.int32),
            outputs=np.arange(_first_output(sequence, rows), rows, dtype=np.int32),
            copy=copy,
        )
        return Step(batch, tokens, (sequence,), self._pacer.begin(Kind.PROMPT, rows, contested=contested))

    def _admit(self) -> tuple[Sequence, Copy | None]:
        sequence = self._waiting.popleft()
        reusable = sequence.prompt if sequence.pool is None else _NOTHING
        sequence.slot, sequence.filled, copy = self.slots.take(reusable)
        sequence.cached = sequence.filled
        return sequence, copy

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
