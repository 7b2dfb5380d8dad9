"""What an architecture is to the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from antfarm.engine import ggml
from antfarm.engine.builder import Builder
from antfarm.engine.layout import LayerTensors

Half = Callable[[Builder, int, ggml.Tensor], ggml.Tensor]


@dataclass(frozen=True)
class Architecture:
    """A layer's tensors and its two halves. Each half takes the hidden rows [embedding, rows] and
    returns what is to be added to them; of a rank, its share of that."""

    tensors: LayerTensors
    attention: Half
    feed_forward: Half
