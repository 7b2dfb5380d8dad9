"""What a forager's log says of heartbeats that the bus does not take."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antfarm.bus.client import bus_error
from antfarm.config import Home
from antfarm.forager import ForagerSettings, daemon
from antfarm.forager.probe import Capabilities
from antfarm.secret import Secret


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "the bus does not answer"),
        (bus_error(ConnectionResetError(), "nats://h:1"), "does not answer: ConnectionResetError"),
    ],
)
async def test_a_heartbeat_that_was_not_stored_is_told_with_its_cause(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    said: str,
) -> None:
    twice = asyncio.Event()
    tries = []

    async def put(_facts: Any) -> None:
        tries.append(1)
        if len(tries) == 2:
            twice.set()
        raise error

    monkeypatch.setattr(daemon, "HEARTBEAT_S", 0.01)
    home = Home(tmp_path)
    settings = ForagerSettings(home, Secret.load_or_create(home.secret_file), "nats://h:1", name="a")
    bus: Any = SimpleNamespace(connected=False)
    registry: Any = SimpleNamespace(put=put)
    beating = asyncio.create_task(daemon.Forager(settings, bus, registry, Capabilities((), (), ()))._beat())
    await twice.wait()
    beating.cancel()
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.startswith("a heartbeat was not stored: ") and said in line
