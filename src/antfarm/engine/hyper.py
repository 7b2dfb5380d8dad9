"""An architecture's numbers, read from a GGUF's metadata, and refusal of what would be silently wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

from antfarm.errors import ModelError, Reason, cut
from antfarm.model.gguf import GgufFile
from antfarm.types import ModelFacts

# Metadata that changes the computation in ways no architecture here knows: {arch}.<key>, and the value
# that means "not in use".
_UNKNOWN_FEATURES: dict[str, Any] = {
    "expert_count": 0,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.scale": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "embedding_scale": 0.0,
    "residual_scale": 0.0,
    "logit_scale": 0.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding as `ggml_rope_ext` takes it. `extrapolation` is 1 for YaRN and 0 otherwise."""

    dims: int  # of a head's values that rotate
    base: float
    scale: float  # of positions: 1 / the context's extension factor
    trained: int  # the context before it was extended
    extrapolation: float
    attention: float
    beta_fast: float
    beta_slow: float

    def settings(self, mode: int) -> tuple[float, ...]:
        """The arguments of `ggml_rope_ext` after the tensors, for one of ggml's rotation modes."""
        return (
            self.dims, mode, self.trained, self.base, self.scale,
            self.extrapolation, self.attention, self.beta_fast, self.beta_slow,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hyper:
    """What the graphs need to know of a model."""

    facts: ModelFacts
    eps: float
    rope: Rope

    @property
    def group(self) -> int:
        """Query heads to a KV head."""
        return self.facts.heads // self.facts.kv_heads


def read(file: GgufFile, context: int) -> Hyper:
    """Read and check; `context` is the tokens per slot that will be run.

    Raises `unsupported-architecture` for features that no graph here computes.
    """
    for key, unused in _UNKNOWN_FEATURES.items():
        value = file.hparam(key, unused)
        if not isinstance(value, int | float) or value != unused:
            _refuse(file, f"{file.arch}.{key} = {cut(str(value))}")
    window = int(_number(file, "attention.sliding_window", 0))
    if 0 < window < context:
        _refuse(
            file,
            f"a sliding window of {window} tokens",
            f"run it with a context of at most {window}, where the window has no effect",
        )
    facts = file.facts
    if facts.heads % facts.kv_heads:
        _refuse(file, f"{facts.heads} heads over {facts.kv_heads} KV heads")
    return Hyper(facts, _number(file, "attention.layer_norm_rms_epsilon"), _rope(file, facts))


def _rope(file: GgufFile, facts: ModelFacts) -> Rope:
    kind = file.hparam("rope.scaling.type", "linear")
    if not isinstance(kind, str) or kind not in ("none", "linear", "yarn"):
        _refuse(file, f"RoPE scaling of type {cut(repr(kind))}")
    factor = _number(file, "rope.scaling.factor", _number(file, "rope.scale_linear", 0))
    dims = int(_number(file, "rope.dimension_count", facts.head_dim))
    if dims % 2 or not 0 < dims <= facts.head_dim:
        _refuse(file, f"RoPE over {dims} of {facts.head_dim} dimensions")
    yarn = kind == "yarn"
    return Rope(
        dims=dims,
        base=_number(file, "rope.freq_base", 10000),
        scale=1.0 / factor if factor and kind != "none" else 1.0,
        trained=int(_number(file, "rope.scaling.original_context_length", facts.context)),
        extrapolation=1.0 if yarn else 0.0,
        attention=_number(file, "rope.scaling.attn_factor", 1),
        beta_fast=_number(file, "rope.scaling.yarn_beta_fast", 32),
        beta_slow=_number(file, "rope.scaling.yarn_beta_slow", 1),
    )


def _number(file: GgufFile, key: str, *default: float) -> float:
    """`{arch}.{key}`, a finite number from 0 up; without a default it must be there."""
    value = file.hparam(key, *default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        _refuse(file, f"{file.arch}.{key} = {cut(repr(value))}")
    return float(value)


def _refuse(file: GgufFile, what: str, hint: str = "take another model") -> NoReturn:
    raise ModelError(
        Reason.UNSUPPORTED_ARCHITECTURE, f"{file.path.name} uses {what}, which is not supported", hint=hint
    )
