"""What a request must pass before its body is looked at: the API key. And what the body must be:
of bounded length, and there in time."""

from __future__ import annotations

import asyncio
import hmac

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antfarm.errors import AntfarmError, Reason, RequestError
from antfarm.queen.api.errors import error_response

BODY_S = 30.0  # from the headers to the last byte of the body
MAX_BODY = 4 << 20  # bytes; a task written anew for the bus, which takes twice that, has room
ENDING = AntfarmError(Reason.COLONY_DOWN, "the queen is ending", hint="send the request again later")
CLOSE = {"Connection": "close"}  # the rest of the body is not waited for
GUARDED = ("/v1/", "/tokenize", "/detokenize", "/metrics")


class Gate:
    """ASGI middleware. Without a key every request passes; health and the OpenAPI page always do."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self._app = app
        self._key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"].startswith(GUARDED) and not self._admits(Headers(scope=scope)):
            refusal = RequestError(
                Reason.UNAUTHORIZED,
                "the API key is missing or wrong",
                hint="send the colony's key as Authorization: Bearer KEY",
            )
            await error_response(refusal)(scope, receive, send)
        else:
            await _ending_well(self._app, scope, _bounded(receive), send)

    def _admits(self, headers: Headers) -> bool:
        if self._key is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        known = hmac.compare_digest(given.strip().encode(), self._key.encode())
        return known and scheme.lower() == "bearer"


async def _ending_well(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """A request is cancelled only when the server ends, and is then told so, if it was told nothing yet."""
    began = False

    async def noted(message: Message) -> None:
        nonlocal began
        began = True
        await send(message)

    try:
        await app(scope, receive, noted)
    except asyncio.CancelledError:
        if not began:
            await error_response(ENDING)(scope, receive, send)


def _bounded(receive: Receive) -> Receive:
    deadline = asyncio.get_running_loop().time() + BODY_S
    taken, complete = 0, False

    async def bounded() -> Message:
        nonlocal taken, complete
        if complete:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError as error:
            raise HTTPException(408, f"the body did not arrive within {BODY_S:g} s", CLOSE) from error
        taken += len(message.get("body", b""))
        if taken > MAX_BODY:
            raise HTTPException(413, f"the body is larger than {MAX_BODY} bytes", CLOSE)
        complete = not message.get("more_body", False)
        return message

    return bounded
