"""Real buses and homes for the tests of every room that needs one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from antfarm.bus import Bus, EmbeddedServer
from antfarm.bus.server import find_program
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
async def stock_server(folder: Path) -> AsyncIterator[str]:
    """The URL of a nats-server as its makers configure it, but for JetStream, our token, and a free port."""
    words = (find_program(), "-a", "127.0.0.1", "-p", "-1", "--auth", TOKEN, "-js", "-sd", folder)
    process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr
        port = b""
        async with asyncio.timeout(20):
            while b"Server is ready" not in (line := await process.stderr.readline()):
                assert line, "it ended"
                if b"Listening for client connections" in line:
                    port = line.split(b":")[-1].strip()
        yield f"nats://127.0.0.1:{int(port)}"
    finally:
        process.terminate()
        await process.communicate()


@asynccontextmanager
async def connected(server: EmbeddedServer, name: str = "test") -> AsyncIterator[Bus]:
    bus = await Bus.connect(server.url, TOKEN, name)
    try:
        yield bus
    finally:
        await bus.close()
