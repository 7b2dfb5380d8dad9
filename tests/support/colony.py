"""Real buses and homes for the tests of every room that needs one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from antfarm.bus import Bus, EmbeddedServer
from antfarm.config import Home
from antfarm.secret import Secret

SECRET = Secret("a-secret-of-the-tests")
TOKEN = SECRET.bus_token()


@asynccontextmanager
async def running_server(path: Path, *, port: int = 0) -> AsyncIterator[EmbeddedServer]:
    """A nats-server of its own, on a free port."""
    server = await EmbeddedServer.start(Home(path), TOKEN, port=port)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def connected(server: EmbeddedServer, name: str = "test") -> AsyncIterator[Bus]:
    bus = await Bus.connect(server.url, TOKEN, name)
    try:
        yield bus
    finally:
        await bus.close()
