"""Hidden rows of a whole prompt to one vector."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from antfarm.errors import AntfarmError, Reason
from antfarm.model.gguf import GgufFile

MEAN = "mean"
LAST = "last"

_TYPES = {0: MEAN, 1: MEAN, 2: "cls", 3: LAST, 4: "rank"}  # GGUF's numbers; 0 is "none"
SUPPORTED = (MEAN, LAST)


def pooling_of(file: GgufFile) -> str:
    """How the model's file says that its rows are pooled; the mean where it says nothing."""
    kind = file.hparam("pooling_type", 1)
    return _TYPES.get(kind, str(kind)) if isinstance(kind, int) else MEAN


class Pool:
    """Takes the rows of a prompt of `tokens` as they come, in order. `kind` is one of `SUPPORTED`."""

    def __init__(self, kind: str, tokens: int) -> None:
        self._kind = kind
        self._missing = tokens
        self._sum: NDArray[np.float64] | None = None

    def add(self, rows: NDArray[np.float32]) -> None:
        """More rows [n, E], after the output norm."""
        self._missing -= len(rows)
        new = rows[-1] if self._kind == LAST else rows.sum(axis=0, dtype=np.float64)
        self._sum = new.astype(np.float64) if self._sum is None or self._kind == LAST else self._sum + new

    @property
    def complete(self) -> bool:
        return self._missing <= 0

    def vector(self) -> NDArray[np.float32]:
        """[E], of length 1 (the mean's scale does not matter for that). Raises `internal` when the rows
        hold what is not finite: no vector then means anything."""
        assert self._sum is not None
        length = float(np.linalg.norm(self._sum))
        if not math.isfinite(length):
            raise AntfarmError(
                Reason.INTERNAL,
                "the model computed a vector of numbers that are not finite",
                hint="the model file may be damaged; compare its checksum, or try another wire format",
            )
        return (self._sum / (length or 1.0)).astype("<f4")
