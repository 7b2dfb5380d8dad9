"""A shard's weights in backend memory: repacked where the backend has faster kernels for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from antfarm.cuts import HEAD
from antfarm.engine import ggml
from antfarm.engine.layout import Slice
from antfarm.errors import ModelError, Reason
from antfarm.model.gguf import GgufFile
from antfarm.types import Span

Progress = Callable[[int, int], None]

_PIECE = 1 << 22  # bytes copied at a time where the layout allows it


class Weights(Mapping[str, ggml.Tensor]):
    """Tensors by their GGUF name. `bytes` is what they take, padding and repacking included."""

    def __init__(self, slices: Iterable[Slice], backend: ggml.Backend) -> None:
        """Allocate, without touching the memory.

        Raises `unsupported-tensor-type` for what the backend can't compute with, `no-capacity`.
        """
        self._tensors: dict[str, ggml.Tensor] = {}
        self._slices = list(slices)
        self._whole: set[str] = set()  # tensors that their buffer takes only in one piece
        self._contexts: list[ggml.Context] = []
        self._buffers: list[ggml.Buffer] = []
        try:
            for kind, held in self._placed(backend).items():
                self._allocate(kind, held, in_pieces=kind == backend.buffer_type)
        except BaseException:
            self.free()
            raise
        self.bytes = sum(buffer.size for buffer in self._buffers)

    def _placed(self, backend: ggml.Backend) -> dict[ggml.BufferType, list[Slice]]:
        """The slices by the kind of buffer that they go to."""
        faster = backend.extra_buffer_types()
        placed: dict[ggml.BufferType, list[Slice]] = {}
        for each in self._slices:
            placed.setdefault(_home(each, faster, backend), []).append(each)
        return placed

    def _allocate(self, kind: ggml.BufferType, held: list[Slice], *, in_pieces: bool) -> None:
        context = ggml.Context(len(held))
        self._contexts.append(context)
        for each in held:
            self._tensors[each.fact.name] = context.tensor(each.fact.type, *each.shape)
        self._buffers.append(context.allocate(kind, weights=True))
        if not in_pieces:
            self._whole.update(each.fact.name for each in held)

    def load(self, file: GgufFile, progress: Progress) -> None:
        """Copy the slices out of the file, in its order, letting go of its pages after each piece; the head
        first, since it may be by far the largest piece and is in memory twice while it is copied.
        `progress(done, total)` in bytes."""
        total = sum(ggml.nbytes(self._tensors[each.fact.name]) for each in self._slices)
        done = 0
        order = {name: i for i, name in enumerate(file.tensors)}
        for each in sorted(self._slices, key=lambda each: (each.fact.name != HEAD, order[each.fact.name])):
            for size in self._copy(file, each):
                file.release(each.fact.name)
                done += size
                progress(done, total)

    def _copy(self, file: GgufFile, each: Slice) -> Iterable[int]:
        """Yields the bytes of each piece copied."""
        tensor = self._tensors[each.fact.name]
        rows = each.rows
        step = len(rows)
        if each.fact.name not in self._whole:
            step = max(1, _PIECE // ggml.row_bytes(each.fact.type, len(each.cols)))
        at = 0
        for lo in range(rows.lo, rows.hi, step):
            piece = Span(lo, min(lo + step, rows.hi))
            data = np.ascontiguousarray(file.read(each.fact.name, piece, each.cols))
            ggml.write(tensor, data, at)
            at += data.nbytes
            yield data.nbytes

    def __getitem__(self, name: str) -> ggml.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def free(self) -> None:
        for buffer in self._buffers:
            buffer.free()
        for context in self._contexts:
            context.free()


def _home(each: Slice, faster: list[ggml.BufferType], backend: ggml.Backend) -> ggml.BufferType:
    """Where a slice goes: the first faster layout whose kernels take it, else the plain one."""
    kind = each.fact.type
    if not each.matrix:
        if kind != "f32":
            raise _unsupported(each)
        return backend.buffer_type
    shape = (len(each.cols), len(each.rows))
    if not ggml.is_weight_type(kind) or not backend.multiplies(kind, shape, backend.buffer_type):
        raise _unsupported(each)
    if not each.looked_up:
        for candidate in faster:
            if backend.multiplies(kind, shape, candidate):
                return candidate
    return backend.buffer_type


def _unsupported(each: Slice) -> ModelError:
    return ModelError(
        Reason.UNSUPPORTED_TENSOR_TYPE,
        f"{each.fact.name} is of type {each.fact.type}, which the backend does not compute with",
        hint="quantize the model to another type",
    )
