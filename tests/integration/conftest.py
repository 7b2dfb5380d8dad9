from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.antc import Antc
from support.models import Models
from support.starts import Starts
from support.world import World, colony_at


@pytest.fixture
def antc(tmp_path: Path) -> Iterator[Antc]:
    """`antc` in a home of its own, of which nothing may be left running."""
    antc = Antc(tmp_path / "home")
    yield antc
    left = antc.close()
    assert not left, f"left running: {left}"


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A real bus and queen in this process, and the foragers that the test starts."""
    async with colony_at(tmp_path) as made:
        yield made


@pytest.fixture
def starts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Starts:
    """Holds processes that the test starts, and theirs, at their start."""
    made = Starts(tmp_path_factory.mktemp("starts"))
    path = [str(made.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    return made


@pytest.fixture
def tiny(models: Models) -> Path:
    return models.path("tiny-llama")
