from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.antc import Antc
from support.models import Models
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
def tiny(models: Models) -> Path:
    return models.path("tiny-llama")
