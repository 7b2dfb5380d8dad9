"""The OpenAI API as a client reads it: pure, so that blocking and asynchronous clients share it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from antfarm.errors import AntfarmError, Reason, RequestError, StateError

CHAT = "/v1/chat/completions"
CONNECT_S = 5.0
SILENCE_S = 180.0  # until a piece of the answer comes; the queen gives up on a silent lead earlier


def options(url: str, key: str) -> dict[str, Any]:
    """How to make an httpx client for the API at `url`; no key is empty. Raises `RequestError` `bad-setting`
    for what is no such URL, and as `checked`."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port out of range, half of an IPv6 address
        usable = False
    if not usable:
        raise RequestError(
            Reason.BAD_SETTING, f"{url!r} is not an API's URL", hint="write it as http://host:port/v1"
        )
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {checked(key)}"} if key else {},
        "timeout": httpx.Timeout(SILENCE_S, connect=CONNECT_S),
        "trust_env": False,  # a proxy for the web has no business between us and our queen
    }


def checked(key: str) -> str:
    """An API key. Raises `RequestError` `bad-setting` for one that no HTTP header carries as it is."""
    if key and key == key.strip() and key.isascii() and key.isprintable():
        return key
    raise RequestError(
        Reason.BAD_SETTING,
        "the API key is empty, or has characters that no HTTP header carries",
        hint="take ASCII letters, digits and signs; --no-api-key drops a key that is kept in the home",
    )


def streaming(body: dict[str, Any]) -> dict[str, Any]:
    """The body that asks for a stream, with token counts and timings in its last chunk."""
    return body | {"stream": True, "stream_options": {"include_usage": True}}


def chunk(line: str) -> dict[str, Any] | None:
    """The chunk that a line of a stream holds, if any. Raises the error that it holds."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return None
    body: dict[str, Any] = json.loads(line[6:])
    if "error" in body:
        raise _told(body) or AntfarmError(Reason.INTERNAL, "the answer failed")
    return body


def joined(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The chat completion that the chunks of a stream with one choice make up."""
    said = "".join(choice["delta"].get("content") or "" for one in chunks for choice in one["choices"])
    ends = [choice["finish_reason"] for one in chunks for choice in one["choices"]]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": said},
        "finish_reason": ends[-1] if ends else None,
    }
    last = chunks[-1] if chunks else {}
    return last | {"object": "chat.completion", "choices": [choice]}


def check(response: httpx.Response) -> None:
    """Raise the error that a response holds. Its body must have been read."""
    if response.is_error:
        with suppress(ValueError):
            if refusal := _told(response.json()):
                raise refusal
        raise StateError(
            Reason.COLONY_DOWN,
            f"{response.url} is not OpenAI's API: HTTP {response.status_code}",
            hint="check the address, and what stands between here and there",
        )


@contextmanager
def connection_errors(url: str) -> Iterator[None]:
    """httpx's errors as ours: `colony-down`, `timeout`."""
    try:
        yield
    except httpx.ConnectError as error:
        raise StateError(
            Reason.COLONY_DOWN,
            f"nothing answers at {url}",
            hint="`antc doctor` looks at what runs; `antc down` and `antc up` start afresh",
        ) from error
    except httpx.TimeoutException as error:
        raise StateError(Reason.TIMEOUT, f"no answer from {url} in time") from error
    except httpx.HTTPError as error:
        raise StateError(
            Reason.COLONY_DOWN, f"the connection to {url} broke: {str(error) or type(error).__name__}"
        ) from error


def _told(body: Any) -> AntfarmError | None:
    """The error in an OpenAI-shaped body, if it has one, with our reason from its `code`."""
    told = body.get("error") if isinstance(body, dict) else None
    if not isinstance(told, dict):
        return None
    code = str(told.get("code"))
    reason = Reason(code) if code in list(Reason) else Reason.INTERNAL
    return AntfarmError(reason, str(told.get("message")))
