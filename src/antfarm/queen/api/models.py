"""The models that clients may name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from antfarm.errors import AntfarmError, Reason, RequestError
from antfarm.messages import ColonyStats, ModelStatus, TaskEvent
from antfarm.queen.tasks import TaskRequest

ANY_MODEL = ("", "default")
GONE_STATES = ("failed", "retired")  # such a model is not offered, but who names it is told what became of it


class Source(Protocol):
    """What the API needs of the queen."""

    def run(self, request: TaskRequest) -> AsyncGenerator[TaskEvent, None]:
        """A task's events. Closing it cancels the task."""

    def status(self) -> Sequence[ModelStatus]:
        """Every model the queen knows."""

    def missing(self, name: str) -> AntfarmError:
        """Why there is no model of this name: it never was, or it was unloaded."""

    def stats(self) -> ColonyStats:
        """Everything that is counted."""


def offered(queen: Source) -> list[ModelStatus]:
    return [model for model in queen.status() if model.state not in GONE_STATES]


def known(queen: Source, name: str) -> ModelStatus:
    """Raises `model-unknown`, naming those that are loaded, or `model-retired`."""
    models = {model.model: model for model in queen.status()}
    if name in models:
        return models[name]
    error = queen.missing(name)
    error.numbers["param"] = "model"
    raise error


def fitting(model: ModelStatus, tasks: Sequence[TaskRequest]) -> Sequence[TaskRequest]:
    """The answers of one request. Raises `invalid-request` for more than the model ever takes at once: to try
    again would be in vain."""
    if model.room and len(tasks) > model.room:
        raise RequestError(
            Reason.INVALID_REQUEST,
            f"n: {len(tasks)} answers were asked for; {model.model} runs and queues up to {model.room}",
            hint="ask for fewer, or load the model with more slots or a longer queue",
            param="n",
        )
    return tasks


def chosen(queen: Source, name: str) -> ModelStatus:
    """The model asked for, or the only one when none is named; where there is no other, one that failed,
    which says why."""
    if name not in ANY_MODEL:
        return known(queen, name)
    models = offered(queen) or [model for model in queen.status() if model.state == "failed"][-1:]
    if len(models) == 1:
        return models[0]
    if not models:
        raise RequestError(Reason.MODEL_UNKNOWN, "no model is loaded", hint="antc load MODEL", param="model")
    names = ", ".join(model.model for model in models)
    raise RequestError(
        Reason.INVALID_REQUEST, "model: several are loaded", hint=f"name one of {names}", param="model"
    )
