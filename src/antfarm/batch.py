"""The rows of one step, as the lead decides them and every shard computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Copy(NamedTuple):
    """KV rows `0 .. rows` of slot `source`, to be copied to slot `target`."""

    source: int
    target: int
    rows: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Row i belongs to the sequence in slot `slots[i]` at position `positions[i]`.

    Either a *chunk* (all rows in one slot, consecutive positions) or a *decode* (at most one row
    per slot, slots ascending). `outputs` are the indices of the rows whose hidden state is wanted
    at the end; a prompt's chunks before the last want none. `copy` is carried out before the rows,
    by every shard on its own layers: steps run in one order everywhere, so it finds the same rows.
    """

    slots: NDArray[np.int32]  # [rows]
    positions: NDArray[np.int32]  # [rows]
    outputs: NDArray[np.int32]  # [<= rows]
    copy: Copy | None = None

    @property
    def rows(self) -> int:
        return len(self.slots)

    @property
    def is_chunk(self) -> bool:
        return self.rows > 1 and bool(self.slots[0] == self.slots[-1])
