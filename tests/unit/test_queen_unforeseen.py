"""What nobody foresaw costs the replica that it happened to, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.colony_script import forager
from support.facts import SMOLLM2

from antfarm.bus.subjects import FORAGER_DESCRIBE
from antfarm.colony.events import ForagerHeard, Tick
from antfarm.config import Home
from antfarm.errors import Reason
from antfarm.messages import LoadModel, ModelDescribed, OpsEvent
from antfarm.queen.service import Queen
from antfarm.queen.settings import QueenSettings
from antfarm.secret import Secret


class Bus:
    """Answers a `DescribeModel`, or raises what the test sets."""

    connected = False
    error: Exception | None = None

    async def request(self, subject: Any, message: Any, within: float = 0) -> Any:
        if self.error:
            raise self.error
        assert subject.name == FORAGER_DESCRIBE.of("a").name
        return ModelDescribed(SMOLLM2)

    async def close(self) -> None:
        pass


class Ops:
    async def append(self, event: OpsEvent) -> None:
        pass


@pytest_asyncio.fixture
async def queen(tmp_path: Path) -> AsyncIterator[Queen]:
    home = Home(tmp_path)
    settings = QueenSettings(home, Secret.load_or_create(home.secret_file))
    made = Queen(settings, None, Bus(), Ops())  # type: ignore[arg-type]
    made._happened(ForagerHeard(forager("a")))
    yield made
    await made.close()


async def outcome(queen: Queen) -> Reason | str:
    """Load, and why that failed."""
    await queen.load(LoadModel("file", name="m"))
    async with asyncio.timeout(5):
        while not (failure := queen.status()[0].failure):  # noqa: ASYNC110
            await asyncio.sleep(0)
    return failure.reason


async def test_an_exception_in_the_core_fails_the_load_and_frees_the_name(
    queen: Queen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise AssertionError("only memory makes a checked layout fail")

    with monkeypatch.context() as patch:
        patch.setattr("antfarm.colony.placement.place", broken)
        assert await outcome(queen) == Reason.INTERNAL
        assert "only memory" in queen.status()[0].failure.message  # type: ignore[union-attr]
    assert (await queen.load(LoadModel("file", name="m"))).state == "loading"


async def test_an_exception_in_performing_fails_the_load(queen: Queen) -> None:
    queen._bus.error = RuntimeError("surprise")  # type: ignore[attr-defined]
    assert await outcome(queen) == Reason.INTERNAL
    queen._bus.error = None  # type: ignore[attr-defined]
    assert (await queen.load(LoadModel("file", name="m"))).state == "loading"


async def test_an_exception_about_no_replica_ends_nothing(
    queen: Queen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("surprise")

    monkeypatch.setitem(queen._colony._handlers, Tick, broken)
    assert queen._happened(Tick()) == []
    assert "surprise" in caplog.text
