"""The engine: graphs over ggml for one shard's part of a model, its weights and its KV cache."""

from __future__ import annotations

from antfarm.engine.arch import ARCHITECTURES
from antfarm.engine.engine import Engine
from antfarm.engine.ggml import cpu_features as features
from antfarm.engine.ggml import devices as backends
from antfarm.engine.ggml import version as ggml_version

__all__ = ["ARCHITECTURES", "Engine", "backends", "features", "ggml_version"]
