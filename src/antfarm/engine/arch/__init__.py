"""The architectures that run here, by their GGUF names."""

from __future__ import annotations

from antfarm.engine.arch import llama, qwen2, qwen3
from antfarm.engine.arch.architecture import Architecture
from antfarm.errors import ModelError, Reason

ARCHITECTURES: dict[str, Architecture] = {
    "llama": llama.ARCHITECTURE,
    "qwen2": qwen2.ARCHITECTURE,
    "qwen3": qwen3.ARCHITECTURE,
}


def find(name: str) -> Architecture:
    """Raises `unsupported-architecture`."""
    try:
        return ARCHITECTURES[name]
    except KeyError:
        raise ModelError(
            Reason.UNSUPPORTED_ARCHITECTURE,
            f"the architecture {name!r} is not supported",
            hint=f"take a model of one of: {', '.join(ARCHITECTURES)}",
        ) from None
