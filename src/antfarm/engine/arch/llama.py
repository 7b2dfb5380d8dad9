"""Llama and what is shaped like it: Mistral, SmolLM, TinyLlama, ...; Llama 3.1's RoPE factors too."""

from __future__ import annotations

from antfarm.engine import blocks, ggml, ops
from antfarm.engine.arch.architecture import Architecture
from antfarm.engine.builder import Builder
from antfarm.engine.layout import LayerTensors


def attention(b: Builder, layer: int, h: ggml.Tensor) -> ggml.Tensor:
    q, k, v = blocks.qkv(b, layer, h)
    q, k = blocks.rope(b, q, ops.ROPE_NORM), blocks.rope(b, k, ops.ROPE_NORM)
    return blocks.attend(b, layer, q, k, v)


ARCHITECTURE = Architecture(
    LayerTensors(
        required=blocks.ATTENTION + blocks.FEED_FORWARD,
        optional=blocks.ATTENTION_BIASES + blocks.FEED_FORWARD_BIASES,
    ),
    attention,
    blocks.feed_forward,
)
