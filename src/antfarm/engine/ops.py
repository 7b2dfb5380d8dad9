"""ggml's operations, typed: each adds a node to a context. Shapes have the contiguous side first."""

from __future__ import annotations

from antfarm.engine.ggml import Context, Tensor
from antfarm.engine.ggml import native as _c

ROPE_NORM: int = _c.GGML_ROPE_TYPE_NORMAL  # rotates neighbours: (0, 1), (2, 3), ...
ROPE_NEOX: int = _c.GGML_ROPE_TYPE_NEOX  # rotates halves: (0, d/2), (1, d/2 + 1), ...


def add(c: Context, a: Tensor, b: Tensor) -> Tensor:
    return Tensor(_c.ggml_add(c.handle, a, b))


def add_into(c: Context, a: Tensor, b: Tensor) -> Tensor:
    """a += b, in a's own memory."""
    return Tensor(_c.ggml_add_inplace(c.handle, a, b))


def mul(c: Context, a: Tensor, b: Tensor) -> Tensor:
    return Tensor(_c.ggml_mul(c.handle, a, b))


def mul_mat(c: Context, weight: Tensor, x: Tensor) -> Tensor:
    """x [in, n] times weight [in, out] → [out, n]."""
    return Tensor(_c.ggml_mul_mat(c.handle, weight, x))


def rms_norm(c: Context, x: Tensor, eps: float) -> Tensor:
    return Tensor(_c.ggml_rms_norm(c.handle, x, eps))


def swiglu(c: Context, gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    return Tensor(_c.ggml_swiglu_split(c.handle, gate, up))


def get_rows(c: Context, table: Tensor, indices: Tensor) -> Tensor:
    return Tensor(_c.ggml_get_rows(c.handle, table, indices))


def set_rows(c: Context, table: Tensor, rows: Tensor, indices: Tensor) -> Tensor:
    return Tensor(_c.ggml_set_rows(c.handle, table, rows, indices))


def reshape(c: Context, x: Tensor, *shape: int) -> Tensor:
    sides = shape + (1,) * (4 - len(shape))
    return Tensor(_c.ggml_reshape_4d(c.handle, x, *sides))


def permute(c: Context, x: Tensor, *axes: int) -> Tensor:
    return Tensor(_c.ggml_permute(c.handle, x, *axes))


def view(
    c: Context, x: Tensor, shape: tuple[int, int, int, int], strides: tuple[int, int, int], at: int
) -> Tensor:
    """A window of x: strides of dimensions 1 to 3 and the start, in bytes."""
    return Tensor(_c.ggml_view_4d(c.handle, x, *shape, *strides, at))


def rope(
    c: Context, x: Tensor, positions: Tensor, factors: Tensor | None, settings: tuple[float, ...]
) -> Tensor:
    """Rotary position embedding of x [head_dim, heads, n]; settings in the order of `ggml_rope_ext`."""
    return Tensor(_c.ggml_rope_ext(c.handle, x, positions, factors, *settings))


def flash_attention(c: Context, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """q [D, rows, heads, slots], k and v [D, n, kv_heads, slots], mask [n, rows, 1, slots], f16
    → [D, heads, rows, slots]."""
    return Tensor(_c.ggml_flash_attn_ext(c.handle, q, k, v, mask, scale, 0.0, 0.0))
