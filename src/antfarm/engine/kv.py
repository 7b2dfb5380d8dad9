"""The KV cache: for each layer of this shard, keys and values of all slots, slot after slot."""

from __future__ import annotations

from antfarm.batch import Copy
from antfarm.engine import ggml, ops
from antfarm.errors import AntfarmError, Reason
from antfarm.types import Span

KINDS = ("f16", "f32", "q8_0")


class KvCache:
    """Per layer two tensors [kv_heads * head_dim, slots * context]; row `slot * context + position`."""

    def __init__(
        self,
        backend: ggml.Backend,
        layers: Span,
        *,
        heads: int,
        head_dim: int,
        context: int,
        slots: int,
        kind: str,
    ) -> None:
        """`heads` is this shard's KV heads. Raises `bad-setting` for a type that can't hold a head."""
        if kind not in KINDS or head_dim % ggml.block_values(kind):
            raise AntfarmError(
                Reason.BAD_SETTING,
                f"a KV cache of type {kind!r} can't hold heads of {head_dim} values",
                hint=f"take one of: {', '.join(KINDS)}",
            )
        self.heads, self.head_dim = heads, head_dim
        self.head_bytes = ggml.row_bytes(kind, head_dim)
        self.row_bytes = self.head_bytes * heads
        self.slot_bytes = self.row_bytes * context
        self._first = layers.lo
        self._context = ggml.Context(2 * len(layers))
        width, rows = heads * head_dim, context * slots
        self._keys = [self._context.tensor(kind, width, rows) for _ in layers.range()]
        self._values = [self._context.tensor(kind, width, rows) for _ in layers.range()]
        self._buffer = self._context.allocate(backend.buffer_type)
        self._buffer.clear()  # a masked row counts zero times what it holds, which must not be NaN
        self.bytes = self._buffer.size

    def keys(self, layer: int) -> ggml.Tensor:
        return self._keys[layer - self._first]

    def values(self, layer: int) -> ggml.Tensor:
        return self._values[layer - self._first]

    def window(self, c: ggml.Context, cached: ggml.Tensor, slots: Span, length: int) -> ggml.Tensor:
        """The first `length` rows of some slots: [head_dim, length, heads, slots]."""
        return ops.view(
            c,
            cached,
            (self.head_dim, length, self.heads, len(slots)),
            (self.row_bytes, self.head_bytes, self.slot_bytes),
            slots.lo * self.slot_bytes,
        )

    def copy(self, copy: Copy) -> None:
        """Carry a copy out in every layer."""
        views = ggml.Context(2 * 2 * len(self._keys))
        for tensor in (*self._keys, *self._values):
            source, target = copy.source * self.slot_bytes, copy.target * self.slot_bytes
            ggml.copy_within(views, tensor, copy.rows * self.heads * self.head_dim, source, target)
        views.free()

    def free(self) -> None:
        self._buffer.free()
        self._context.free()
