"""Qwen2 and Qwen2.5: biases on Q, K and V; heads rotate by halves."""

from __future__ import annotations

from antfarm.engine import blocks, ggml, ops
from antfarm.engine.arch.architecture import Architecture
from antfarm.engine.builder import Builder
from antfarm.engine.layout import LayerTensors


def attention(b: Builder, layer: int, h: ggml.Tensor) -> ggml.Tensor:
    q, k, v = blocks.qkv(b, layer, h)
    q, k = blocks.rope(b, q, ops.ROPE_NEOX), blocks.rope(b, k, ops.ROPE_NEOX)
    return blocks.attend(b, layer, q, k, v)


ARCHITECTURE = Architecture(
    LayerTensors(required=blocks.ATTENTION + blocks.FEED_FORWARD, optional=blocks.ATTENTION_BIASES),
    attention,
    blocks.feed_forward,
)
