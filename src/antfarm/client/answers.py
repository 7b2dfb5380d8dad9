"""Asking the colony's HTTP API: `antc ask` and `antc chat` are such clients."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from antfarm.client import state, wire
from antfarm.client.control import no_queen
from antfarm.config import Home


class Answers:
    """Chat completions of one colony; bodies and answers are OpenAI's. Ended with `close`."""

    def __init__(self, url: str, key: str = "") -> None:
        self._url = url
        self._http = httpx.Client(**wire.options(url, key))

    @classmethod
    def of(cls, home: Home) -> Self:
        """The API of the queen in this home. Raises `StateError` `colony-down`."""
        return cls(*api_of(home))

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """The whole answer, as the API would send it. Raises the API's error as `AntfarmError`.

        It is asked for as a stream: however long it takes, the connection is never silent.
        """
        return wire.joined(list(self.stream(body)))

    def stream(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """The chunks of an answer as they come, token counts and timings in the last one.

        Closing the iterator ends the answer at the model, too.
        """
        with (
            wire.connection_errors(self._url),
            self._http.stream("POST", wire.CHAT, json=wire.streaming(body)) as response,
        ):
            if response.is_error:
                response.read()
            wire.check(response)
            for line in response.iter_lines():
                if chunk := wire.chunk(line):
                    yield chunk

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def api_of(home: Home) -> tuple[str, str]:
    """URL and key of the API in this home; no key is empty. Raises `StateError` `colony-down`."""
    queen = state.read(home).queen()
    if queen is None or not queen.api:
        raise no_queen(home)
    return queen.api, api_key(home)


def api_key(home: Home) -> str:
    """The key that the API of this home asks for; empty when it asks for none. Raises as `key_in`."""
    return key_in(home.api_key_file) if home.api_key_file.exists() else ""


def key_in(file: Path) -> str:
    """The API key that a file holds. Raises `RequestError` `bad-setting` when it holds none."""
    return wire.checked(file.read_text(errors="replace").strip())
