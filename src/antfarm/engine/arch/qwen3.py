"""Qwen3: each head of Q and K is normalized before it rotates by halves."""

from __future__ import annotations

from antfarm.engine import blocks, ggml, ops
from antfarm.engine.arch.architecture import Architecture
from antfarm.engine.builder import Builder
from antfarm.engine.layout import LayerTensors


def attention(b: Builder, layer: int, h: ggml.Tensor) -> ggml.Tensor:
    q, k, v = blocks.qkv(b, layer, h)
    q = blocks.norm(b, q, b.weight(layer, "attn_q_norm.weight"))
    k = blocks.norm(b, k, b.weight(layer, "attn_k_norm.weight"))
    q, k = blocks.rope(b, q, ops.ROPE_NEOX), blocks.rope(b, k, ops.ROPE_NEOX)
    return blocks.attend(b, layer, q, k, v)


ARCHITECTURE = Architecture(
    LayerTensors(
        required=(*blocks.ATTENTION, "attn_q_norm.weight", "attn_k_norm.weight", *blocks.FEED_FORWARD)
    ),
    attention,
    blocks.feed_forward,
)
