"""Names of models that are no more: how many are remembered, to tell what became of them."""

from __future__ import annotations

from antfarm.colony.state import Model, state_of

RETIRED_NAMES = 256  # that were unloaded
FAILED_NAMES = 8  # that never got ready


class Retired:
    """The names that were unloaded last."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}  # oldest first

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        self._names[name] = None
        while len(self._names) > RETIRED_NAMES:
            del self._names[next(iter(self._names))]

    def discard(self, name: str) -> None:
        self._names.pop(name, None)


def offered(models: dict[str, Model]) -> list[str]:
    """Those that stand for more than a load that failed."""
    return sorted(name for name in models if not failed(models[name]))


def forget_failed(models: dict[str, Model]) -> None:
    """Drop the oldest loads that failed, so that they do not pile up."""
    dead = [name for name in models if failed(models[name])]
    for name in dead[:-FAILED_NAMES]:
        del models[name]


def failed(model: Model) -> bool:
    """Whether it stands for no more than a load that failed."""
    return model.view is None or state_of(model.view) == "failed"
