"""Asking the colony's HTTP API: `antc ask` and `antc chat` are such clients."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import httpx

from antfarm.client import state
from antfarm.client.control import no_colony
from antfarm.config import Home
from antfarm.errors import AntfarmError, Reason, StateError

CONNECT_S = 5.0
SILENCE_S = 180.0  # until a piece of the answer comes; the queen gives up on a silent lead earlier


class Answers:
    """Chat completions of one colony; bodies and answers are OpenAI's. Ended with `close`."""

    def __init__(self, url: str, key: str = "") -> None:
        self._url = url
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
            trust_env=False,  # a proxy for the web has no business between us and our queen
        )

    @classmethod
    def of(cls, home: Home) -> Self:
        """The API of the queen in this home. Raises `StateError` `colony-down`."""
        queen = state.read(home).queen()
        if queen is None or not queen.api:
            raise no_colony(home)
        key = home.api_key_file.read_text().strip() if home.api_key_file.exists() else ""
        return cls(queen.api, key)

    def whole(self, body: dict[str, Any]) -> Any:
        """The whole answer, as the API sends it. Raises the API's error as `AntfarmError`."""
        with self._errors():
            response = self._http.post("/v1/chat/completions", json=body)
            _check(response)
            return response.json()

    def stream(self, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """The chunks of an answer as they come, token counts and timings in the last one.

        Closing the iterator ends the answer at the model, too.
        """
        wanted = body | {"stream": True, "stream_options": {"include_usage": True}}
        with self._errors(), self._http.stream("POST", "/v1/chat/completions", json=wanted) as response:
            if response.is_error:
                response.read()
            _check(response)
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        raise _failure(chunk)
                    yield chunk

    def close(self) -> None:
        self._http.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise StateError(
                Reason.COLONY_DOWN,
                f"nothing answers at {self._url}",
                hint="`antc doctor` looks at what runs; `antc down` and `antc up` start afresh",
            ) from error
        except httpx.TimeoutException as error:
            raise StateError(Reason.TIMEOUT, f"no answer from {self._url} in time") from error
        except httpx.HTTPError as error:
            raise StateError(
                Reason.COLONY_DOWN, f"the connection to {self._url} broke: {error or type(error).__name__}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check(response: httpx.Response) -> None:
    if response.is_error:
        try:
            body = response.json()
        except ValueError:
            body = {}
        raise _failure(body, f"HTTP {response.status_code}")


def _failure(body: Any, otherwise: str = "the API failed") -> AntfarmError:
    """The error in an OpenAI-shaped body."""
    told = body.get("error") if isinstance(body, dict) else None
    if not isinstance(told, dict):
        return AntfarmError(Reason.INTERNAL, otherwise)
    code = str(told.get("code"))
    reason = Reason(code) if code in list(Reason) else Reason.INTERNAL
    return AntfarmError(reason, str(told.get("message")))
