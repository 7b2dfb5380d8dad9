"""The memory that a shard's graphs share: one runs at a time, so each may use all of it."""

from __future__ import annotations

from antfarm.engine import ggml
from antfarm.errors import AntfarmError, Reason


class Workspace:
    """Reserved for the largest graphs before the first token; never grows after."""

    def __init__(self, backend: ggml.Backend) -> None:
        self._backend = backend
        self._allocator = ggml.Allocator(backend.buffer_type)
        self._scratch = 0

    @property
    def bytes(self) -> int:
        return self._allocator.size + self._scratch

    def reserve(self, graph: ggml.Graph) -> None:
        """Make room for a graph. Raises `unsupported-tensor-type` when the backend lacks an operation
        that it needs, and `no-capacity`."""
        for node in graph.nodes():
            if not self._backend.supports(node):
                raise AntfarmError(
                    Reason.UNSUPPORTED_TENSOR_TYPE,
                    f"the backend does not compute {ggml.describe(node)}",
                    hint="take the CPU backend, or another quantization",
                )
        self._allocator.reserve(graph)
        self._scratch = max(self._scratch, self._backend.work_bytes(graph))

    def place(self, graph: ggml.Graph) -> None:
        """Give a graph its memory. All graphs placed before stay valid."""
        size = self._allocator.size
        self._allocator.allocate(graph)
        if self._allocator.size != size:  # older graphs point to memory that is gone
            raise AntfarmError(Reason.INTERNAL, "a graph needs more memory than was reserved", reserved=size)

    def free(self) -> None:
        self._allocator.free()
