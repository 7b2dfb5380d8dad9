"""How much of a mapped file this process holds in memory."""

from __future__ import annotations

from pathlib import Path

import pytest


def resident(path: Path) -> int:
    """Bytes of the file's pages. Skips the test where the system does not say."""
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("needs /proc")
    lines = iter(smaps.read_text().splitlines())
    for line in lines:
        if str(path) in line:
            return next(int(each.split()[1]) << 10 for each in lines if each.startswith("Rss:"))
    return 0
