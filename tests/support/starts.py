"""Processes that wait at their start for as long as a test wants, so that what needs them goes on and on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Every Python runs it before its program. One whose parent hangs up waits no longer.
_AT_START = """
import select, sys
from pathlib import Path

stdin = select.poll()
stdin.register(0, 0)
while any(Path({path!r}, word).exists() for word in sys.orig_argv if "/" not in word) and not stdin.poll(20):
    pass
"""


class Starts:
    """Holds for processes that have `folder` in their PYTHONPATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held = folder / "held"
        self._held.mkdir()
        (folder / "sitecustomize.py").write_text(_AT_START.format(path=str(self._held)))

    @contextmanager
    def held(self, word: str) -> Iterator[None]:
        """In this block no process starts that has this word among its arguments."""
        file = self._held / word
        file.touch()
        try:
            yield
        finally:
            file.unlink()
