"""How far a download is, seen from outside."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from antfarm.model import wheel


def test_a_download_is_measured_while_its_folders_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stays", "goes", "stays/within"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"12345")
    assert wheel._size(tmp_path) == 15
    scandir = os.scandir

    def listed(path: Any) -> Any:
        if str(path).endswith("goes"):
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", listed)
    assert wheel._size(tmp_path) == 10
