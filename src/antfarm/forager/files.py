"""The model files of this host: found by name, fetched when they are not here, and described."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from antfarm.errors import AntfarmError, ModelError, Reason, StateError
from antfarm.model.catalog import Catalog
from antfarm.model.gguf import GgufFile
from antfarm.types import ModelFacts


class Files:
    """Models under one folder. What takes time runs in threads; `close` ends a download underway."""

    def __init__(self, folder: Path, architectures: Sequence[str]) -> None:
        """`architectures` are those that the engine runs; a model of another is not described."""
        self._catalog = Catalog(folder)
        self._architectures = architectures
        self._pulls: dict[str, asyncio.Lock] = {}
        self._closed = threading.Event()

    async def path(self, model: str) -> Path:
        """Where the model is on this host. Raises `model-unknown` when it is not."""
        return await asyncio.to_thread(self._catalog.resolve, model)

    async def describe(self, model: str, progress: Callable[[int, int], None]) -> ModelFacts:
        """Fetch the model if need be, with `progress(done, total)` in bytes, and read its header.

        Raises `model-unknown`, `download-failed`, `not-a-gguf`, `model-truncated`,
        `unsupported-architecture`, ...
        """
        async with self._pulls.setdefault(model, asyncio.Lock()):
            try:
                path = await self.path(model)
            except AntfarmError as error:
                if error.reason is not Reason.MODEL_UNKNOWN:
                    raise
                path = await asyncio.to_thread(self._pull, model, progress)
        return await asyncio.to_thread(self._facts, path)

    def close(self) -> None:
        self._closed.set()

    def _pull(self, model: str, progress: Callable[[int, int], None]) -> Path:
        def tell(done: int, total: int) -> None:
            if self._closed.is_set():
                raise StateError(
                    Reason.CANCELLED, f"the download of {model} was interrupted", hint="ask again"
                )
            progress(done, total)

        return self._catalog.pull(model, tell)

    def _facts(self, path: Path) -> ModelFacts:
        with GgufFile.open(path) as file:
            if file.arch not in self._architectures:  # before its keys are looked for
                raise ModelError(
                    Reason.UNSUPPORTED_ARCHITECTURE,
                    f"{path}: the architecture {file.arch!r} is not supported",
                    hint=f"take a model of one of: {', '.join(self._architectures)}",
                )
            return file.facts
