"""Progress of downloads and loading shards: bars on a terminal, a few plain lines elsewhere. On stderr."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from antfarm.cli.output import note, size
from antfarm.messages import ModelStatus, PullProgress

PLAIN_EVERY_S = 5.0


class Display:
    """A bar for each thing that goes on, by its key; without a terminal, a line when it is due."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}")
        self._bars = Progress(*columns, console=console) if console.is_terminal else None
        self._rows: dict[object, TaskID] = {}
        self._said: dict[object, tuple[str, str, float]] = {}

    def fetched(self, name: str, done: int, total: int) -> None:
        """A download; `total` is 0 while it is not known."""
        part = done / total if total else None
        amount = f"{size(done)} of {size(total)}" if total else size(done)
        self._show(name, f"fetching {name}", part, amount, due=done == total)

    def pulling(self, pull: PullProgress) -> None:
        """A download by a forager."""
        self.fetched(f"{pull.model} on {pull.forager}", pull.done, pull.total)

    def loading(self, status: ModelStatus) -> None:
        """The weights of each shard."""
        for view in status.shards:
            text = f"{status.model} shard {view.shard} on {view.forager}: {view.state}"
            amount = f"{view.loaded:.0%} of {view.part}, {size(view.planned)}"
            self._show((status.replica, status.epoch, view.shard), text, view.loaded, amount)

    def __enter__(self) -> Self:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def _show(self, key: object, text: str, part: float | None, amount: str, *, due: bool = False) -> None:
        """`part`, 0..1, is done; None where nobody knows. Without a terminal a line is said when `text`
        changes, or, as the amount grows, when it is `due` and every few seconds."""
        if self._bars is None:
            said, so_far, when = self._said.get(key, ("", "", 0.0))
            new = amount != so_far and (due or time.monotonic() - when > PLAIN_EVERY_S)
            if text != said or new:
                self._said[key] = text, amount, time.monotonic()
                note(f"{text}: {amount}")
            return
        if key not in self._rows:
            self._rows[key] = self._bars.add_task(text, total=1.0, amount=amount)
        total = None if part is None else 1.0
        self._bars.update(
            self._rows[key], description=text, completed=part or 0.0, total=total, amount=amount
        )
