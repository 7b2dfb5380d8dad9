"""Where a daemon's log goes: a bounded file in the home when detached, the terminal in the foreground."""

from __future__ import annotations

import logging
import logging.handlers
import sys
from io import TextIOWrapper
from pathlib import Path

from antfarm.client.disk import private

LOG_BYTES = 4 << 20
KEPT = 2  # older files


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """Readable by its owner alone."""

    def _open(self) -> TextIOWrapper:
        file = open(self.baseFilename, self.mode, encoding="utf-8", opener=private)  # noqa: SIM115
        assert isinstance(file, TextIOWrapper)
        return file


def log_to(path: Path | None) -> None:
    """Log to a file that is rotated before it grows large, or to stderr."""
    handler: logging.Handler
    if path is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler = _PrivateFile(path, maxBytes=LOG_BYTES, backupCount=KEPT)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
