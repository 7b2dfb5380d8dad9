"""What a half layer is built from: a graph under construction, and what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from antfarm.engine import ggml
from antfarm.engine.hyper import Hyper
from antfarm.engine.kv import KvCache
from antfarm.engine.step import StepInputs, StepShape


@dataclass(frozen=True, slots=True)
class Builder:
    """Tensors are [width, rows] unless said otherwise."""

    context: ggml.Context
    graph: ggml.Graph
    hyper: Hyper
    weights: Mapping[str, ggml.Tensor]
    cache: KvCache
    inputs: StepInputs
    shape: StepShape

    def weight(self, layer: int, name: str) -> ggml.Tensor:
        return self.weights[f"blk.{layer}.{name}"]
