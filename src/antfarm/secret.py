"""The colony's secret: what lets a host join. One per colony, readable by its owner alone.

It is never put into arguments, the environment or a log. What goes over a connection is a key
derived from it for that one purpose, so that the bus's token does not open a shard's link.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

from antfarm.errors import AntfarmError, Reason


class Secret:
    """A colony secret; its text is hidden from `repr` so that it can't slip into a log."""

    def __init__(self, text: str) -> None:
        if len(text) < 16:
            raise AntfarmError(
                Reason.BAD_SETTING,
                f"a colony secret has at least 16 characters; this one has {len(text)}",
                hint="copy the whole join line that the queen printed",
            )
        self._text = text

    @classmethod
    def load_or_create(cls, path: Path) -> Secret:
        """The secret in `path`; made there (mode 0600) when the file does not exist."""
        if not path.exists():
            _create(path, secrets.token_urlsafe(24))
        return cls(_text(path))

    def save(self, path: Path) -> None:
        """Write to `path`, readable by its owner alone."""
        write_private(path, self._text)

    def reveal(self) -> str:
        """The text itself: for the join line that a person is shown, and a shard's stdin."""
        return self._text

    def bus_token(self) -> str:
        """What NATS asks of its clients."""
        return self._derive("bus").hex()

    def link_key(self) -> bytes:
        """What shards prove to each other that they hold."""
        return self._derive("link")

    def _derive(self, purpose: str) -> bytes:
        return hmac.new(self._text.encode(), purpose.encode(), hashlib.sha256).digest()

    def __repr__(self) -> str:
        return "Secret(...)"


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except UnicodeDecodeError as error:
        raise AntfarmError(
            Reason.BAD_SETTING, f"{path} holds no secret: it is not text", hint="restore it, or remove it"
        ) from error


def _create(path: Path, text: str) -> None:
    """One line of text in a file of mode 0600 that appears whole; of several who create it, one does."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
        with contextlib.suppress(FileExistsError):  # another was faster
            path.hardlink_to(fresh)
    finally:
        Path(fresh).unlink()


def write_private(path: Path, text: str) -> None:
    """One line of text in a file of mode 0600, whatever was there before."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
    fresh.replace(path)
