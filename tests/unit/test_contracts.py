"""The import contracts cover what they say: a package that is added must be named in them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "antfarm"


def contract(name: str) -> dict[str, Any]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return next(one for one in contracts if one["name"].startswith(name))


def modules(folder: Path, prefix: str) -> set[str]:
    """Modules and packages right in a folder, by their full names."""
    return {
        f"{prefix}.{path.stem}"
        for path in folder.iterdir()
        if not path.name.startswith("__") and (path.suffix == ".py" or (path / "__init__.py").exists())
    }


def test_every_module_but_the_one_is_kept_from_ggml() -> None:
    others = modules(PACKAGE, "antfarm") | modules(PACKAGE / "engine", "antfarm.engine")
    assert set(contract("ggml is called")["source_modules"]) == others - {
        "antfarm.engine",
        "antfarm.engine.ggml",
    }


def test_every_module_has_its_layer() -> None:
    layers = contract("rooms")["layers"]
    named = {name.strip() for layer in layers for name in layer.split("|")}
    assert named == modules(PACKAGE, "antfarm")
