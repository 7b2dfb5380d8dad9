"""uvicorn under our own supervision: the port is taken first, and stopping is bounded."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from antfarm.errors import AntfarmError, Reason
from antfarm.queen.api.connection import PatientProtocol

BACKLOG = 512
GRACE_S = 2  # for answers that have been ended to reach their clients


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 takes any free one. Do this before anything else starts.

    Raises `port-in-use`, or `bad-setting` for a host that isn't this machine's.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise _no_address(host, port, error) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise AntfarmError(
                Reason.PORT_IN_USE,
                f"{host}:{port} is in use",
                hint="choose another port, or 0 for any free one",
            ) from error
        raise _no_address(host, port, error) from error
    return sock


def exposed(host: str, api_key: str | None) -> bool:
    """Whether anyone on the network could use the API: it listens beyond this machine and asks for no key."""
    if api_key is not None or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


class ApiServer:
    """The API, listening. Make it with `start`; `stop` it."""

    def __init__(self, server: uvicorn.Server, sock: socket.socket) -> None:
        self._server = server
        self.host, self.port = sock.getsockname()[:2]
        self._task = asyncio.create_task(server.serve([sock]))

    @classmethod
    async def start(cls, app: FastAPI, sock: socket.socket) -> ApiServer:
        """Serve `app` on a socket from `bind`. It answers when this returns."""
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE_S,
            log_level=logging.WARNING,
        )
        server = _Server(config)
        api = cls(server, sock)
        await server.listening.wait()
        return api

    @property
    def url(self) -> str:
        """Where a client on this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def stop(self) -> None:
        """Take no more connections, give running answers `GRACE_S`, then end them (`colony-down`)."""
        self._server.should_exit = True
        await self._task

    async def wait(self) -> None:
        """Until the server ends, which it does only when stopped or broken."""
        await asyncio.shield(self._task)


class _Server(uvicorn.Server):
    """uvicorn that says when it listens, and leaves the process's signals to the queen."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _no_address(host: str, port: int, error: OSError) -> AntfarmError:
    return AntfarmError(
        Reason.BAD_SETTING,
        f"can't listen on {host}:{port}: {error.strerror}",
        hint="name an address of this machine",
    )
