"""Progress of downloads and loading shards: bars on a terminal, a few plain lines elsewhere. On stderr."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from antfarm.cli.output import note, size
from antfarm.messages import ModelStatus

PLAIN_EVERY_S = 5.0


class _Shown:
    """Bars while the block runs, where there is a terminal to draw them on."""

    def __init__(self, *columns: object) -> None:
        console = Console(stderr=True)
        self._bars = Progress(*columns, console=console) if console.is_terminal else None  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()


class Download(_Shown):
    """Called with bytes done and bytes in all."""

    def __init__(self, name: str) -> None:
        super().__init__(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        )
        self._name = name
        self._bar: TaskID | None = None
        self._said = 0.0

    def __call__(self, done: int, total: int) -> None:
        if self._bars is None:
            self._plain(done, total)
        elif self._bar is None:
            self._bar = self._bars.add_task(self._name, completed=done, total=total or None)
        else:
            self._bars.update(self._bar, completed=done, total=total or None)

    def _plain(self, done: int, total: int) -> None:
        if done >= total > 0 or time.monotonic() - self._said > PLAIN_EVERY_S:
            self._said = time.monotonic()
            note(f"{self._name}: {size(done)} of {size(total) if total else 'unknown'}")


class Loading(_Shown):
    """Called with each look at a loading model: one bar, or one line per change, for each shard."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %")
        )
        self._rows: dict[tuple[int, int], TaskID] = {}
        self._said: dict[tuple[int, int], str] = {}

    def __call__(self, status: ModelStatus) -> None:
        for view in status.shards:
            key = (status.epoch, view.shard)
            text = f"{status.model} shard {view.shard} on {view.forager}: {view.state}"
            if self._bars is not None:
                if key not in self._rows:
                    self._rows[key] = self._bars.add_task(text, total=1.0)
                self._bars.update(self._rows[key], description=text, completed=view.loaded)
            elif self._said.get(key) != text:
                self._said[key] = text
                note(f"{text} ({view.part}, {size(view.planned)})")
