"""The building blocks that architectures share."""

from __future__ import annotations

from antfarm.cuts import ROPE_FACTORS
from antfarm.engine import ggml, ops
from antfarm.engine.builder import Builder

ATTENTION = ("attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight")
ATTENTION_BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias")
FEED_FORWARD = ("ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
FEED_FORWARD_BIASES = ("ffn_gate.bias", "ffn_up.bias", "ffn_down.bias")


def norm(b: Builder, x: ggml.Tensor, weight: ggml.Tensor) -> ggml.Tensor:
    return ops.mul(b.context, ops.rms_norm(b.context, x, b.hyper.eps), weight)


def linear(b: Builder, layer: int, name: str, x: ggml.Tensor) -> ggml.Tensor:
    """x times a layer's matrix, plus its bias where this shard holds one."""
    y = ops.mul_mat(b.context, b.weight(layer, f"{name}.weight"), x)
    bias = b.weights.get(f"blk.{layer}.{name}.bias")
    return y if bias is None else ops.add(b.context, y, bias)


def qkv(b: Builder, layer: int, h: ggml.Tensor) -> tuple[ggml.Tensor, ggml.Tensor, ggml.Tensor]:
    """Norm, then this shard's heads of queries, keys and values: [head_dim, heads, rows]."""
    x = norm(b, h, b.weight(layer, "attn_norm.weight"))

    def project(name: str, heads: int) -> ggml.Tensor:
        return ops.reshape(b.context, linear(b, layer, name, x), b.cache.head_dim, heads, b.shape.rows)

    heads = b.cache.heads
    return project("attn_q", heads * b.hyper.group), project("attn_k", heads), project("attn_v", heads)


def rope(b: Builder, x: ggml.Tensor, mode: int) -> ggml.Tensor:
    """Turn heads [head_dim, heads, rows] by their rows' positions."""
    positions = b.inputs.positions.view(b.context, b.shape.rows)
    factors = b.weights.get(ROPE_FACTORS)
    return ops.rope(b.context, x, positions, factors, b.hyper.rope.settings(mode))


def attend(b: Builder, layer: int, q: ggml.Tensor, k: ggml.Tensor, v: ggml.Tensor) -> ggml.Tensor:
    """Write keys and values [head_dim, kv_heads, rows] to the cache, attend to it with the queries
    [head_dim, heads, rows] of this shard, and project: [embedding, rows], this rank's share of the sum."""
    keys, values = b.cache.keys(layer), b.cache.values(layer)
    _store(b, keys, k)
    _store(b, values, v)
    seen = b.shape.cached, b.shape.per_slot, 1, len(b.shape.slots)
    mixed = ops.flash_attention(
        b.context,
        _by_slot(b, q),
        b.cache.window(b.context, keys, b.shape.slots, b.shape.cached),
        b.cache.window(b.context, values, b.shape.slots, b.shape.cached),
        b.inputs.mask.view(b.context, *seen),
        b.cache.head_dim**-0.5,
    )
    return linear(b, layer, "attn_output", _by_row(b, mixed))


def feed_forward(b: Builder, layer: int, h: ggml.Tensor) -> ggml.Tensor:
    """Norm, then down(silu(gate(x)) * up(x)), this rank's share of the sum."""
    x = norm(b, h, b.weight(layer, "ffn_norm.weight"))
    gate, up = linear(b, layer, "ffn_gate", x), linear(b, layer, "ffn_up", x)
    return linear(b, layer, "ffn_down", ops.swiglu(b.context, gate, up))


def _store(b: Builder, cached: ggml.Tensor, x: ggml.Tensor) -> None:
    rows = ops.reshape(b.context, x, b.cache.heads * b.cache.head_dim, b.shape.rows)
    cells = b.inputs.cells.view(b.context, b.shape.rows)
    b.graph.add(ops.set_rows(b.context, cached, rows, cells))  # before attention reads it


def _by_slot(b: Builder, q: ggml.Tensor) -> ggml.Tensor:
    """[head_dim, heads, rows] → [head_dim, per_slot, heads, slots]; idle slots repeat some row."""
    shape = b.shape
    count = b.cache.heads * b.hyper.group
    if shape.gaps:
        flat = ops.reshape(b.context, q, b.cache.head_dim * count, shape.rows)
        q = ops.get_rows(b.context, flat, b.inputs.spread.view(b.context, len(shape.slots)))
    q = ops.reshape(b.context, q, b.cache.head_dim, count, shape.per_slot, len(shape.slots))
    return ops.permute(b.context, q, 0, 2, 1, 3)


def _by_row(b: Builder, mixed: ggml.Tensor) -> ggml.Tensor:
    """[head_dim, heads, per_slot, slots] → [heads * head_dim, rows]."""
    shape = b.shape
    width = b.cache.heads * b.hyper.group * b.cache.head_dim
    flat = ops.reshape(b.context, mixed, width, shape.per_slot * len(shape.slots))
    if shape.gaps:
        flat = ops.get_rows(b.context, flat, b.inputs.gather.view(b.context, shape.rows))
    return flat
