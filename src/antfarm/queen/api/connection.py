"""One HTTP connection, with an end to its patience."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 30.0  # that a connection may stay without a request whose head is complete


class PatientProtocol(H11Protocol):
    """uvicorn's protocol, which by itself waits for ever for a request's head, for the rest of a body that
    was answered already, and for a client that does not take the end of its answer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop()
        self._patience = self.loop.call_later(HEAD_S, self._give_up)

    def _stop(self) -> None:
        if self._patience:
            self._patience.cancel()

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
