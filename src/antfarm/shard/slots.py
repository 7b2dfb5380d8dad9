"""What each slot of the KV cache holds, and which slot a prompt takes. Pure.

Rows are noted when the step that computes them is scheduled. Every shard runs steps in that order, so
for whatever is scheduled later they are there. A slot that was given back keeps its rows until
another prompt takes it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Copy

LEAST_COPY = 16  # rows; fewer are read again as fast as they are copied

Tokens = NDArray[np.int32]


class Seat(NamedTuple):
    """A slot whose first `reused` rows are the prompt's already, or will be once `copy` is carried out."""

    slot: int
    reused: int
    copy: Copy | None


class Slots:
    """`count` slots of `context` rows each."""

    def __init__(self, count: int, context: int) -> None:
        self.count = count
        self.capacity = count * context  # rows
        self._tokens = np.zeros((count, context), np.int32)
        self._held = [0] * count  # rows of each slot that are those of its tokens
        self._touched = [0] * count  # when it was last taken or given back; 0 never
        self._turn = 0
        self._free = set(range(count))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def rows(self) -> int:
        """KV rows of the slots that are taken."""
        return sum(held for slot, held in enumerate(self._held) if slot not in self._free)

    def take(self, prompt: Tokens) -> Seat:
        """A free slot for a prompt [tokens], with the longest prefix of it that any slot holds.

        All but the prompt's last token can be reused: that one's row gives the first logits. Where the
        prefix is most of what a free slot holds, that slot is taken as it is. Else the one that was
        not used for longest is, and the prefix is copied there, so that what goes beyond it stays.
        """
        matches = [self._match(slot, prompt[:-1]) for slot in range(self.count)]
        oldest = min(self._free, key=lambda slot: (self._touched[slot], slot))
        best = max(range(self.count), key=lambda slot: (matches[slot], slot == oldest, slot in self._free))
        rows = matches[best]
        stays = best in self._free and 2 * rows >= self._held[best] > 0
        slot = best if stays else oldest
        if slot != best and rows < LEAST_COPY:
            rows = matches[slot]
            best = slot
        self._free.remove(slot)
        self._touch(slot)
        self._tokens[slot, :rows] = prompt[:rows]
        self._held[slot] = rows
        return Seat(slot, rows, Copy(best, slot, rows) if slot != best else None)

    def fill(self, slot: int, tokens: Tokens | int) -> None:
        """The slot's next rows are being computed from `tokens`."""
        held = self._held[slot]
        self._held[slot] = held + (1 if isinstance(tokens, int) else len(tokens))
        self._tokens[slot, held : self._held[slot]] = tokens

    def give_back(self, slot: int, *, sound: bool) -> None:
        """The slot is free. Rows that are not `sound` must not serve anyone else."""
        self._free.add(slot)
        self._touch(slot)
        if not sound:
            self._held[slot] = 0

    def _touch(self, slot: int) -> None:
        self._turn += 1
        self._touched[slot] = self._turn

    def _match(self, slot: int, prompt: Tokens) -> int:
        """How many tokens the slot's and the prompt's beginnings share."""
        length = min(self._held[slot], len(prompt))
        differ = self._tokens[slot, :length] != prompt[:length]
        return int(differ.argmax()) if differ.any() else length
