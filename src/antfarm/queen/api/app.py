"""The HTTP edge of the queen: OpenAI's routes, health, and nothing that knows how answers are made."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline

import antfarm
from antfarm.messages import ModelStatus
from antfarm.queen import metrics
from antfarm.queen.api import chat, completions, errors, models, openapi, outputs
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

ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
EVENT = {
    "type": "object",
    "description": "With `stream`, events: each one's data is a chunk, as JSON; the last one's is [DONE].",
    "properties": {"data": {"type": "string"}},
}
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}


def create_app(queen: models.Source, *, api_key: str | None = None) -> FastAPI:
    """The API as an ASGI app. With `api_key`, what the gate guards asks for it as a bearer token."""
    app = FastAPIOffline(  # its OpenAPI page comes from here, for browsers that reach no other host
        title="ANTFARM",
        version=antfarm.__version__,
        description="One language model, served by several hosts together. Any OpenAI client works here.",
        redirect_slashes=False,  # a client that POSTs would not follow
    )
    app.add_middleware(Gate, api_key=api_key)
    errors.install(app)

    @app.exception_handler(ClientGone)
    async def gone(_: Request, error: ClientGone) -> Response:
        return Response(status_code=GONE)

    app.include_router(_completions(queen))
    app.include_router(_outputs(queen))
    app.include_router(_models(queen))
    app.include_router(_health(queen))
    app.include_router(metrics.router(queen.stats))
    openapi.correct(app)
    return app


def _completions(queen: models.Source) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["completions"], responses=ERRORS)

    @router.post(
        "/chat/completions",
        response_model=ChatCompletion,
        responses=STREAM,
        summary="Answer a conversation",
    )
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        """With `stream`, server-sent events: chunks, then `[DONE]`."""
        model = models.chosen(queen, body.model)
        tasks = models.fitting(model, chat.tasks(body, model.model))
        form = chat.ChatForm(
            _head("chatcmpl", model),
            logprobs=body.alternatives() is not None,
            counts=body.counts,
            most_calls=None if body.parallel_tool_calls else 1,
            only_calls=body.wanted().tool_choice == "required",
        )
        return await _answer(queen, request, body, form, tasks)

    @router.post("/completions", response_model=TextCompletion, responses=STREAM, summary="Continue a text")
    async def text_completions(request: Request, body: TextRequest) -> Response:
        """With `stream`, server-sent events: chunks, then `[DONE]`."""
        model = models.chosen(queen, body.model)
        tasks = models.fitting(model, completions.tasks(body, model.model))
        form = completions.TextForm(
            _head("cmpl", model), logprobs=body.alternatives() is not None, counts=body.counts
        )
        return await _answer(queen, request, body, form, tasks)

    return router


def _outputs(queen: models.Source) -> APIRouter:
    router = APIRouter(responses=ERRORS)

    @router.post("/v1/embeddings", tags=["embeddings"], summary="Vectors of texts")
    async def embeddings(request: Request, body: outputs.EmbeddingsRequest) -> outputs.Embeddings:
        """Pooled as the model's file says, else the mean of all tokens; of length 1."""
        model = models.chosen(queen, body.model)
        return await while_connected(request.receive, outputs.embeddings(queen, body, model))

    @router.post("/tokenize", tags=["tokens"], summary="A text's or a conversation's tokens")
    async def tokenize(request: Request, body: outputs.TokenizeRequest) -> outputs.Tokenized:
        model = models.chosen(queen, body.model)
        return await while_connected(request.receive, outputs.tokenized(queen, body, model))

    @router.post("/detokenize", tags=["tokens"], summary="The text of tokens")
    async def detokenize(request: Request, body: outputs.DetokenizeRequest) -> outputs.Detokenized:
        model = models.chosen(queen, body.model)
        return await while_connected(request.receive, outputs.detokenized(queen, body, model.model))

    return router


def _models(queen: models.Source) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["models"], responses=ERRORS)

    @router.get("/models", summary="The colony's models")
    async def all_models() -> ModelCards:
        return ModelCards(data=[_card(model) for model in models.offered(queen)])

    @router.get("/models/{name:path}", summary="One model")
    async def one_model(name: str) -> ModelCard:
        return _card(models.known(queen, name))

    return router


def _health(queen: models.Source) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz", summary="The queen is alive", response_model_exclude_unset=True)
    async def alive() -> Health:
        return Health(status="ok")

    @router.get("/readyz", summary="At least one model is ready", responses={503: {"model": Health}})
    async def ready(response: Response) -> Health:
        found = queen.status()
        is_ready = any(model.state == "ready" for model in found)
        response.status_code = 200 if is_ready else 503
        return Health(status="ok" if is_ready else "not-ready", models=[_health_of(one) for one in found])

    return router


async def _answer(
    queen: models.Source, request: Request, body: CompletionBody, form: Format, tasks: Sequence[TaskRequest]
) -> Response:
    tallies = [Tally(index, prompt=index // body.n) for index in range(len(tasks))]
    sources = [queen.run(task) for task in tasks]
    if body.stream:
        stream = frames(form, tallies, sources, counts=body.counts)
        return await while_connected(request.receive, EventStream.opened(stream))
    answer = await while_connected(request.receive, whole(form, tallies, sources))
    return JSONResponse(answer.model_dump(exclude_unset=True))


def _head(kind: str, model: ModelStatus) -> Head:
    return Head(
        id=f"{kind}-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=model.model,
        fingerprint=f"fp_antfarm_{antfarm.__version__}",  # which replica will answer is not known yet
    )


def _card(model: ModelStatus) -> ModelCard:
    return ModelCard(
        id=model.model, created=int(model.created), state=model.state, context_length=model.context
    )


def _health_of(model: ModelStatus) -> ModelHealth:
    reason = model.failure.reason if model.failure else None
    return ModelHealth(model=model.model, state=model.state, reason=reason)
