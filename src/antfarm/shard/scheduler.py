"""Which rows the next step computes: slots, and turns between prompts and answers. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Batch
from antfarm.errors import Reason, StateError
from antfarm.shard.sequence import Sequence

WAITING = 256  # sequences without a slot; beyond it a task is refused at once


@dataclass(frozen=True, slots=True)
class Step:
    """A batch, its tokens [rows], and the sequences in it: of a decode one for each row, of a chunk one."""

    batch: Batch
    tokens: NDArray[np.int32]
    sequences: tuple[Sequence, ...]


class Scheduler:
    """Continuous batching: sequences take and leave slots between steps, in the order they came.

    A step is either a chunk of the oldest unread prompt or one token of every answer; when both
    are wanted they take turns, so that neither starves.
    """

    def __init__(self, slots: int, chunk: int) -> None:
        self._chunk = chunk
        self._free = list(range(slots))
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # with a slot, oldest first
        self._chunk_was_last = False

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    def find(self, task: str) -> Sequence | None:
        """The sequence of `task`, running or waiting."""
        return next((s for s in (*self._running, *self._waiting) if s.task == task), None)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises `queue-full` when too many wait already."""
        if len(self._waiting) >= WAITING:
            raise StateError(
                Reason.QUEUE_FULL, f"{WAITING} tasks wait for this model already", hint="try again later"
            )
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended; its slot is free for the next step."""
        if sequence in self._running:
            self._running.remove(sequence)
            self._free.append(sequence.slot)
            self._free.sort()
        else:
            self._waiting.remove(sequence)

    def schedule(self) -> Step | None:
        """The next step, or None when nothing is to do. Its KV rows count as filled from here on."""
        while self._waiting and self._free:
            sequence = self._waiting.popleft()
            sequence.slot = self._free.pop(0)
            self._running.append(sequence)
        prompt = next((s for s in self._running if s.prefilling), None)
        answers = sorted((s for s in self._running if not s.prefilling), key=lambda s: s.slot)
        if prompt and not (answers and self._chunk_was_last):
            self._chunk_was_last = True
            return _prefill(prompt, self._chunk)
        self._chunk_was_last = False
        return _decode(answers) if answers else None


def _prefill(sequence: Sequence, chunk: int) -> Step:
    """The next chunk of a prompt; only its very last row gives a token."""
    start = sequence.filled
    tokens = sequence.prompt[start : start + chunk]
    rows = len(tokens)
    sequence.filled += rows
    outputs = () if sequence.prefilling else (rows - 1,)
    batch = Batch(
        slots=np.full(rows, sequence.slot, np.int32),
        positions=np.arange(start, start + rows, dtype=np.int32),
        outputs=np.array(outputs, np.int32),
    )
    return Step(batch, tokens, (sequence,))


def _decode(sequences: list[Sequence]) -> Step:
    """One token of each sequence; `sequences` in order of their slots."""
    batch = Batch(
        slots=np.array([s.slot for s in sequences], np.int32),
        positions=np.array([s.filled for s in sequences], np.int32),
        outputs=np.arange(len(sequences), dtype=np.int32),
    )
    for sequence in sequences:
        sequence.filled += 1
    return Step(batch, np.array([s.last for s in sequences], np.int32), tuple(sequences))
