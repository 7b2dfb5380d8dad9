"""ANTFARM: one language model, served by several ordinary hosts together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antfarm.client.colony import Colony
    from antfarm.client.model import Answer, Model
    from antfarm.errors import AntfarmError, Reason

__all__ = ["Answer", "AntfarmError", "Colony", "Model", "Reason", "__version__"]
__version__ = "0.1.0"

_HOMES = {
    "AntfarmError": "antfarm.errors",
    "Answer": "antfarm.client.model",
    "Colony": "antfarm.client.colony",
    "Model": "antfarm.client.model",
    "Reason": "antfarm.errors",
}


def __getattr__(name: str) -> Any:
    """Names are loaded when they are first asked for, so that `import antfarm` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
