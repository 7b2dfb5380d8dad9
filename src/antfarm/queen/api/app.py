"""The HTTP edge of the queen: OpenAI's routes, health, and nothing that knows how answers are made."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

import antfarm
from antfarm.errors import Reason, RequestError
from antfarm.messages import ModelStatus, TaskEvent
from antfarm.queen.api import chat, completions, errors
from antfarm.queen.api.gate import Gate
from antfarm.queen.api.request import ChatRequest, CompletionBody, TextRequest
from antfarm.queen.api.response import (
    ChatCompletion,
    ErrorBody,
    Health,
    ModelCard,
    ModelCards,
    ModelHealth,
    TextCompletion,
)
from antfarm.queen.api.running import GONE, ClientGone, EventStream, frames, while_connected, whole
from antfarm.queen.api.tally import Format, Head, Tally
from antfarm.queen.tasks import TaskRequest

ANY_MODEL = ("", "default")
GONE_STATES = ("failed", "retired")  # such a model is not offered, but who names it is told what became of it
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}


class Source(Protocol):
    """What the API needs of the queen."""

    def run(self, request: TaskRequest) -> AsyncGenerator[TaskEvent, None]:
        """A task's events. Closing it cancels the task."""

    def status(self) -> Sequence[ModelStatus]:
        """Every model the queen knows."""


def create_app(queen: Source, *, api_key: str | None = None) -> FastAPI:
    """The API as an ASGI app. With `api_key`, everything under /v1 asks for it as a bearer token."""
    app = FastAPI(
        title="ANTFARM",
        version=antfarm.__version__,
        description="One language model, served by several hosts together. Any OpenAI client works here.",
    )
    app.add_middleware(Gate, api_key=api_key)
    errors.install(app)
    app.include_router(_completions(queen))
    app.include_router(_models(queen))
    app.include_router(_health(queen))
    return app


def _completions(queen: Source) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["completions"], responses=ERRORS)

    @router.post("/chat/completions", response_model=ChatCompletion, summary="Answer a conversation")
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        """With `stream`, server-sent events: chunks, then `[DONE]`."""
        model = _model(queen, body.model)
        tasks = chat.tasks(body, model.model)
        form = chat.ChatForm(
            _head("chatcmpl", model),
            logprobs=body.alternatives() is not None,
            counts=body.counts,
            most_calls=None if body.parallel_tool_calls else 1,
        )
        return await _answer(queen, request, body, form, tasks)

    @router.post("/completions", response_model=TextCompletion, summary="Continue a text")
    async def text_completions(request: Request, body: TextRequest) -> Response:
        """With `stream`, server-sent events: chunks, then `[DONE]`."""
        model = _model(queen, body.model)
        tasks = completions.tasks(body, model.model)
        form = completions.TextForm(
            _head("cmpl", model), logprobs=body.alternatives() is not None, counts=body.counts
        )
        return await _answer(queen, request, body, form, tasks)

    return router


def _models(queen: Source) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["models"], responses=ERRORS)

    @router.get("/models", summary="The colony's models")
    async def models() -> ModelCards:
        return ModelCards(data=[_card(model) for model in _offered(queen)])

    @router.get("/models/{name:path}", summary="One model")
    async def model(name: str) -> ModelCard:
        return _card(_known(queen, name))

    return router


def _health(queen: Source) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz", summary="The queen is alive", response_model_exclude_unset=True)
    async def alive() -> Health:
        return Health(status="ok")

    @router.get("/readyz", summary="At least one model is ready", responses={503: {"model": Health}})
    async def ready(response: Response) -> Health:
        models = queen.status()
        is_ready = any(model.state == "ready" for model in models)
        response.status_code = 200 if is_ready else 503
        return Health(status="ok" if is_ready else "not-ready", models=[_health_of(one) for one in models])

    return router


async def _answer(
    queen: Source, request: Request, body: CompletionBody, form: Format, tasks: Sequence[TaskRequest]
) -> Response:
    tallies = [Tally(index, prompt=index // body.n) for index in range(len(tasks))]
    sources = [queen.run(task) for task in tasks]
    try:
        if body.stream:
            stream = frames(form, tallies, sources, counts=body.counts)
            return await while_connected(request.receive, EventStream.opened(stream))
        answer = await while_connected(request.receive, whole(form, tallies, sources))
        return JSONResponse(answer.model_dump(exclude_unset=True))
    except ClientGone:
        return Response(status_code=GONE)


def _model(queen: Source, name: str) -> ModelStatus:
    """The model asked for, or the only one when none is named."""
    if name not in ANY_MODEL:
        return _known(queen, name)
    models = _offered(queen)
    if len(models) == 1:
        return models[0]
    if not models:
        raise RequestError(Reason.MODEL_UNKNOWN, "no model is loaded", hint="antc load MODEL", param="model")
    names = ", ".join(model.model for model in models)
    raise RequestError(
        Reason.INVALID_REQUEST, "model: several are loaded", hint=f"name one of {names}", param="model"
    )


def _offered(queen: Source) -> list[ModelStatus]:
    return [model for model in queen.status() if model.state not in GONE_STATES]


def _known(queen: Source, name: str) -> ModelStatus:
    models = {model.model: model for model in queen.status()}
    if name in models:
        return models[name]
    offered = sorted(model.model for model in _offered(queen))
    hint = f"loaded: {', '.join(offered)}" if offered else "antc load MODEL"
    raise RequestError(Reason.MODEL_UNKNOWN, f"no model {name!r} is loaded", hint=hint, param="model")


def _head(kind: str, model: ModelStatus) -> Head:
    return Head(
        id=f"{kind}-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=model.model,
        fingerprint=f"fp_{model.replica}_{model.epoch}",
    )


def _card(model: ModelStatus) -> ModelCard:
    return ModelCard(
        id=model.model, created=int(model.created), state=model.state, context_length=model.context
    )


def _health_of(model: ModelStatus) -> ModelHealth:
    reason = model.failure.reason if model.failure else None
    return ModelHealth(model=model.model, state=model.state, reason=reason)
