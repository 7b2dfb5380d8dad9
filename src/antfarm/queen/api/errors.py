"""Every failure as OpenAI shapes it, with our reason as `code`. The one table of HTTP statuses is here."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from antfarm.errors import AntfarmError, BusError, Reason, RequestError, cut
from antfarm.queen.api.fields import NEEDED, no_object
from antfarm.queen.api.response import ErrorBody, ErrorDetail

log = logging.getLogger(__name__)

STATUS: dict[Reason, int] = {
    Reason.INVALID_REQUEST: 400,
    Reason.CONTEXT_OVERFLOW: 400,
    Reason.BAD_CHAT_TEMPLATE: 400,
    Reason.UNAUTHORIZED: 401,
    Reason.PATH_UNKNOWN: 404,
    Reason.MODEL_UNKNOWN: 404,
    Reason.MODEL_RETIRED: 404,
    Reason.QUEUE_FULL: 429,
    Reason.MODEL_LOADING: 503,
    Reason.SHARD_MISSING: 503,
    Reason.SHARD_FAILED: 503,
    Reason.FORAGER_LOST: 503,
    Reason.NO_CAPACITY: 503,
    Reason.LINK_REFUSED: 503,
    Reason.LINK_LOST: 503,
    Reason.LINK_TIMEOUT: 503,
    Reason.LINK_GARBAGE: 503,
    Reason.BUS_UNREACHABLE: 503,
    Reason.BUS_FULL: 503,
    Reason.COLONY_DOWN: 503,
    Reason.CANCELLED: 503,
    Reason.TIMEOUT: 504,
}
"""A reason that is not listed is our own fault: 500."""

RETRY_AFTER_S: dict[Reason, int] = {
    Reason.QUEUE_FULL: 1,
    Reason.MODEL_LOADING: 2,
    Reason.BUS_UNREACHABLE: 2,
    Reason.SHARD_MISSING: 5,
    Reason.SHARD_FAILED: 5,
    Reason.FORAGER_LOST: 5,
}

TYPES: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}

_NO_OBJECT = ("dict_type", "model_type", "model_attributes_type")  # pydantic's names for it

INTERNAL = AntfarmError(Reason.INTERNAL, "the server failed", hint="`antc ops` and the queen's log say more")


def status_of(error: AntfarmError) -> int:
    return STATUS.get(error.reason, 500)


def error_body(error: AntfarmError) -> ErrorBody:
    """OpenAI's shape. `param` names the wrong field when the error's numbers do."""
    if isinstance(error, BusError) and error.reason is Reason.INVALID_REQUEST:  # its words are for operators
        error = RequestError(Reason.INVALID_REQUEST, "the request is too large for the colony's bus")
    param = error.numbers.get("param")
    return ErrorBody(
        error=ErrorDetail(
            message=f"{error.message} ({error.hint})" if error.hint else error.message,
            type=_type(status_of(error)),
            param=None if param is None else str(param),
            code=error.reason,
        )
    )


def error_response(error: AntfarmError) -> JSONResponse:
    headers = {"Retry-After": str(RETRY_AFTER_S[error.reason])} if error.reason in RETRY_AFTER_S else {}
    if error.reason is Reason.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error).model_dump(), status_of(error), headers)


def wrong_field(error: RequestValidationError) -> RequestError:
    """The first complaint about a body, as a sentence that begins with the field's name."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return RequestError(Reason.INVALID_REQUEST, f"the body is not JSON: {first['ctx']['error']}")
    if isinstance(error.body, bytes):
        return RequestError(
            Reason.INVALID_REQUEST, "the body is not JSON", hint="send it with Content-Type: application/json"
        )
    param = _path(first["loc"])
    if param:
        return RequestError(Reason.INVALID_REQUEST, f"{param}: {_complaint(first)}", param=param)
    if first["type"] == "missing":
        return RequestError(Reason.INVALID_REQUEST, "the body is empty: a JSON object is needed")
    return RequestError(Reason.INVALID_REQUEST, f"the body: {_complaint(first)}")


def install(app: FastAPI) -> None:
    """Answer every failure in OpenAI's shape; no traceback ever reaches a client."""

    @app.exception_handler(AntfarmError)
    async def expected(_: Request, error: AntfarmError) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(wrong_field(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, ValueError | RecursionError):
            return error_response(_unreadable(error.__cause__))
        if error.status_code == 404:
            return error_response(_no_path(request))
        detail = ErrorDetail(
            message=str(error.detail), type=_type(error.status_code), code=Reason.INVALID_REQUEST
        )
        return JSONResponse(
            ErrorBody(error=detail).model_dump(), error.status_code, dict(error.headers or {})
        )

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        return error_response(INTERNAL)


def _no_path(request: Request) -> RequestError:
    return RequestError(
        Reason.PATH_UNKNOWN,
        f"there is no {cut(f'{request.method} {request.url.path}')}",
        hint="/docs lists what there is",
    )


def _unreadable(error: ValueError | RecursionError) -> RequestError:
    """Why FastAPI could not read a body, of which it says no more than that."""
    why = "a number in it has too many digits"
    if isinstance(error, UnicodeDecodeError):
        why = f"byte {error.start} is not UTF-8"
    elif isinstance(error, RecursionError):
        why = "it is nested too deeply"
    return RequestError(Reason.INVALID_REQUEST, f"the body is not JSON: {why}")


def _complaint(error: dict[str, Any]) -> str:
    if error["type"] == "value_error":  # of our own checks
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return NEEDED
    if error["type"] in _NO_OBJECT:
        return no_object(error["input"])
    return str(error["msg"])


def _type(status: int) -> str:
    return TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def _path(loc: Sequence[Any]) -> str:
    """`("body", "messages", 0, "content")` is `messages[0].content`."""
    out = ""
    for step in loc[1:]:
        out += f"[{step}]" if isinstance(step, int) else f".{step}"
    return out.removeprefix(".")
