"""Memory that outlives graphs: what a step reads and leaves behind, seen from numpy and from ggml."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antfarm.engine import ggml, ops

_KINDS: dict[str, type[np.generic]] = {
    "f32": np.float32,
    "f16": np.float16,
    "i32": np.int32,
    "i64": np.int64,
}


class Region:
    """A stretch of values. On a host backend `array` is the memory itself and `push` and `pull` do
    nothing; elsewhere they copy the first values of it to and from the device."""

    def __init__(self, context: ggml.Context, kind: str, values: int) -> None:
        self.kind = kind
        self.tensor = context.tensor(kind, values)
        self.array: NDArray[Any]
        self._values = values

    def bind(self, buffer: ggml.Buffer, *, host: bool) -> None:
        """Once the tensor has its memory."""
        self._buffer, self._host = buffer, host
        if host:
            self.array = ggml.host_array(ggml.address(self.tensor), _KINDS[self.kind], (self._values,))
        else:
            self.array = np.zeros(self._values, _KINDS[self.kind])

    def rows(self, *shape: int) -> NDArray[Any]:
        """The first values, as an array of this shape."""
        return self.array[: int(np.prod(shape))].reshape(shape)

    def view(self, context: ggml.Context, *shape: int) -> ggml.Tensor:
        """The same for a graph; `shape[0]` is the contiguous side."""
        sides = (*shape, 1, 1, 1)[:4]
        size = self.array.itemsize
        strides = (size * sides[0], size * sides[0] * sides[1], size * sides[0] * sides[1] * sides[2])
        return ops.view(context, self.tensor, (sides[0], sides[1], sides[2], sides[3]), strides, 0)

    def receive(self, node: ggml.Tensor) -> ggml.Tensor:
        """Let a graph write this node's result here."""
        return self._buffer.place(node, ggml.address(self.tensor))

    def push(self, values: int) -> None:
        if not self._host:
            ggml.write(self.tensor, self.array[:values])

    def pull(self, values: int) -> None:
        if not self._host:
            ggml.read(self.tensor, self.array[:values])


class Regions:
    """Regions in one buffer: `add` them all, then `allocate`."""

    def __init__(self, backend: ggml.Backend, count: int) -> None:
        self._backend = backend
        self._context = ggml.Context(count)
        self._all: list[Region] = []
        self._buffer: ggml.Buffer | None = None

    def add(self, kind: str, values: int) -> Region:
        region = Region(self._context, kind, values)
        self._all.append(region)
        return region

    @property
    def bytes(self) -> int:
        return self._buffer.size if self._buffer else 0

    def allocate(self) -> None:
        self._buffer = self._context.allocate(self._backend.buffer_type)
        self._buffer.clear()
        for region in self._all:
            region.bind(self._buffer, host=self._backend.host)

    def free(self) -> None:
        if self._buffer is not None:
            self._buffer.free()
        self._context.free()
