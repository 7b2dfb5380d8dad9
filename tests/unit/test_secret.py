"""The colony's secret: who makes its file, and who else reads it meanwhile."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from antfarm.secret import Secret


def test_of_several_that_start_at_once_all_have_the_same_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "home" / "secret"
    others: list[str] = []
    make = secrets.token_urlsafe

    def interrupted(size: int) -> str:
        """Another process starts while this one makes a secret."""
        monkeypatch.setattr(secrets, "token_urlsafe", make)
        others.append(Secret.load_or_create(path).reveal())
        return make(size)

    monkeypatch.setattr(secrets, "token_urlsafe", interrupted)
    assert [Secret.load_or_create(path).reveal()] == others
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
