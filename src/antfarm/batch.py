"""The rows of one step, as the lead decides them and every shard computes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Batch:
    """Row i belongs to the sequence in slot `slots[i]` at position `positions[i]`.

    Either a *chunk* (all rows in one slot, consecutive positions) or a *decode* (at most one row
    per slot, slots ascending). `outputs` are the indices of the rows whose hidden state is wanted
    at the end; a prompt's chunks before the last want none.
    """

    slots: NDArray[np.int32]  # [rows]
    positions: NDArray[np.int32]  # [rows]
    outputs: NDArray[np.int32]  # [<= rows]

    @property
    def rows(self) -> int:
        return len(self.slots)

    @property
    def is_chunk(self) -> bool:
        return self.rows > 1 and bool(self.slots[0] == self.slots[-1])
