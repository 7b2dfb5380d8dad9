"""One step as graphs see it: its shape, which chooses the graph, and its inputs, written by numpy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Batch, Copy
from antfarm.engine.regions import Region, Regions
from antfarm.errors import AntfarmError, Reason
from antfarm.types import Span

REGIONS = 5  # that `StepInputs` adds

_BUCKET = 256  # attention looks at whole multiples of so many KV rows, so that few graphs serve a context
_SEEN, _HIDDEN = np.float16(0), np.float16(-np.inf)


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest step that a shard is loaded for."""

    context: int  # tokens per slot
    slots: int
    chunk: int

    @property
    def rows(self) -> int:
        return max(self.chunk, self.slots)


class StepShape(NamedTuple):
    """What a graph depends on. A chunk has many rows of one slot; a decode has one row of each of
    some slots, which lie in the range `slots`, maybe with idle ones between them."""

    rows: int
    per_slot: int  # rows of each slot
    slots: Span
    cached: int  # KV rows of each slot that attention looks at

    @property
    def gaps(self) -> bool:
        return self.rows != self.per_slot * len(self.slots)


def shape_of(batch: Batch, limits: Limits) -> StepShape:
    """Raises `internal` for a batch outside of the limits, which ggml would not survive."""
    slots, positions = batch.slots.tolist(), batch.positions.tolist()
    rows = len(slots)
    if not 0 < rows == len(positions):
        raise _outside(batch, limits)
    chunk = batch.is_chunk
    if chunk:
        consecutive = positions == list(range(positions[0], positions[0] + rows))
        regular = rows <= limits.chunk and consecutive and slots.count(slots[0]) == rows
    else:
        regular = all(a < b for a, b in pairwise(slots))
    lo, hi, last = slots[0], slots[-1] + 1, max(positions)
    if not regular or lo < 0 or hi > limits.slots or min(positions) < 0 or last >= limits.context:
        raise _outside(batch, limits)
    if batch.copy and not _copies(batch.copy, limits):
        raise _outside(batch, limits)
    cached = min(-(-(last + 1) // _BUCKET) * _BUCKET, limits.context)
    return StepShape(rows, rows if chunk else 1, Span(lo, hi), cached)


def _copies(copy: Copy, limits: Limits) -> bool:
    """Whether a copy stays inside the cache, between two slots."""
    slots = range(limits.slots)
    fits = 0 < copy.rows <= limits.context
    return fits and copy.source in slots and copy.target in slots and copy.source != copy.target


def largest(limits: Limits) -> list[StepShape]:
    """The shapes that need the most memory, of each kind."""
    every = Span(0, limits.slots)
    shapes = [
        StepShape(limits.chunk, limits.chunk, Span(0, 1), limits.context),
        StepShape(limits.slots, 1, every, limits.context),
    ]
    if limits.slots > 2:  # with an idle slot between the first and the last
        shapes.append(StepShape(limits.slots - 1, 1, every, limits.context))
    return shapes


def _outside(batch: Batch, limits: Limits) -> AntfarmError:
    return AntfarmError(
        Reason.INTERNAL,
        f"a step of {batch.rows} rows (slots {batch.slots}, positions {batch.positions}, copy {batch.copy}) "
        f"is not one that this shard can run: {limits}",
    )


class StepInputs:
    """What a step reads beside the hidden rows."""

    def __init__(self, regions: Regions, limits: Limits) -> None:
        self._limits = limits
        self.positions = regions.add("i32", limits.rows)  # [rows]
        self.cells = regions.add("i64", limits.rows)  # [rows]: rows of the KV cache to write
        # [slots, per_slot, cached]: 0 where a row sees a cell, -inf elsewhere
        self.mask = regions.add("f16", limits.rows * limits.context)
        self.spread = regions.add("i32", limits.slots)  # [slots]: which row is a slot's
        self.gather = regions.add("i32", limits.slots)  # [rows]: which slot of the range is a row's
        index = np.arange(limits.chunk)
        self._causal = np.where(index[:, None] >= index, _SEEN, _HIDDEN)  # a chunk's rows on each other

    def fill(self, batch: Batch, shape: StepShape) -> None:
        rows = shape.rows
        _put(self.positions, batch.positions)
        _put(self.cells, batch.slots * np.int64(self._limits.context) + batch.positions)
        mask = self.mask.rows(len(shape.slots), shape.per_slot, shape.cached)
        if shape.per_slot > 1:
            self._fill_chunk(mask[0], int(batch.positions[0]))
        else:
            _fill_decode(mask[:, 0], batch.slots - shape.slots.lo, batch.positions)
        self.mask.push(mask.size)
        if shape.gaps:
            self.spread.array[: len(shape.slots)] = 0
            self.spread.array[batch.slots - shape.slots.lo] = np.arange(rows)
            self.spread.push(len(shape.slots))
            _put(self.gather, batch.slots - shape.slots.lo)

    def _fill_chunk(self, mask: NDArray[np.float16], start: int) -> None:
        rows = len(mask)
        mask[:, :start] = _SEEN
        mask[:, start : start + rows] = self._causal[:rows, :rows]
        mask[:, start + rows :] = _HIDDEN


def _fill_decode(mask: NDArray[np.float16], slots: NDArray[np.int32], positions: NDArray[np.int32]) -> None:
    mask.fill(_HIDDEN)
    for slot, position in zip(slots.tolist(), positions.tolist(), strict=True):
        mask[slot, : position + 1] = _SEEN


def _put(region: Region, values: NDArray[np.integer]) -> None:
    region.array[: len(values)] = values
    region.push(len(values))
