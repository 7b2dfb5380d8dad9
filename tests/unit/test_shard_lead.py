"""The lead's decisions, with a model whose logits the test writes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from support.models import Models

from antfarm.batch import Batch
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import (
    ShardCommand,
    TaskAccepted,
    TaskAssign,
    TaskCancel,
    TaskEvent,
    TaskFinished,
    TaskTokens,
)
from antfarm.model.gguf import GgufFile
from antfarm.model.template import ChatTemplate
from antfarm.model.tokenizer import Tokenizer
from antfarm.shard.intake import Intake
from antfarm.shard.lead import Lead
from antfarm.shard.pipeline import Traffic
from antfarm.types import RunOptions, Sampling

Next = Callable[[int], int | float]


class Scripted:
    """A pipeline whose best next token is `next(last token)`; a float fills the row instead."""

    def __init__(self, size: int, next_token: Next) -> None:
        self._size, self._next = size, next_token
        self.batches: list[Batch] = []
        self._flying: deque[tuple[Batch, NDArray[np.int32]]] = deque()

    def submit(self, batch: Batch, tokens: NDArray[np.int32]) -> None:
        self.batches.append(batch)
        self._flying.append((batch, tokens))

    def collect(self) -> NDArray[np.float32]:
        batch, tokens = self._flying.popleft()
        logits = np.zeros((len(batch.outputs), self._size), np.float32)
        for row, last in zip(logits, tokens[batch.outputs], strict=True):
            best = self._next(int(last))
            if isinstance(best, float):
                row[:] = best
            else:
                row[best] = 9
        return logits

    def traffic(self) -> Traffic:
        return Traffic(100 * len(self.batches), 0.5 * len(self.batches))


class Driven:
    """A lead that answers everything it was given, step by step."""

    def __init__(self, models: Models, next_token: Next, *, stages: int = 1, **options: int) -> None:
        with GgufFile.open(models.path("tiny-llama")) as file:
            self.tokenizer, template = Tokenizer.from_gguf(file), ChatTemplate.from_gguf(file)
        self.pipeline = Scripted(self.tokenizer.size, next_token)
        self.events: list[TaskEvent] = []
        run = RunOptions(**{"context": 64, "slots": 1, "chunk": 8, **options})  # type: ignore[arg-type]
        self.intake = Intake(self.tokenizer, template, run.context)
        self.lead = Lead(self.pipeline, run, stages, self.prepare, self.events.append)  # type: ignore[arg-type]

    def prepare(self, task: TaskAssign) -> None:
        """At once, where a shard does it in the background."""
        self.lead.handle(self.intake.prepare(task, time.perf_counter()))

    def tell(self, *commands: ShardCommand, steps: int = 100) -> None:
        for command in commands:
            self.lead.handle(command)
        for _ in range(2 * steps):  # off and in again
            self.lead.step()

    def of(self, task: str) -> list[TaskEvent]:
        return [event for event in self.events if event.task == task]


def task(name: str, tokens: tuple[int, ...] = (40, 41, 42), **sampling: object) -> TaskAssign:
    settings = Sampling(temperature=0, **sampling)  # type: ignore[arg-type]
    return TaskAssign(name, "r", 1, settings, tokens=tokens)


def count_up(last: int) -> int:
    return last + 1


def test_events_of_a_task_in_their_order(models: Models) -> None:
    driven = Driven(models, count_up)
    driven.tell(task("a", max_tokens=3))
    accepted, *tokens, finished = driven.events
    assert accepted == TaskAccepted("a", 3)
    assert [event.index for event in tokens if isinstance(event, TaskTokens)] == [0, 1, 2]
    expected = driven.tokenizer.decode([43, 44, 45])
    assert "".join(event.text for event in tokens if isinstance(event, TaskTokens)) == expected
    assert isinstance(finished, TaskFinished)
    assert (finished.index, finished.finish, finished.failure) == (3, "length", None)
    timings = finished.timings
    assert timings and (timings.prompt_tokens, timings.completion_tokens) == (3, 3)
    assert (timings.wire_bytes, timings.waited) == (200, 1.0)  # two steps of decode


def test_rows_that_mean_nothing_end_their_task_alone(models: Models) -> None:
    driven = Driven(models, lambda last: float("nan") if last == 50 else last + 1, slots=2)
    driven.tell(task("bad", (48,)), task("good", (60,), max_tokens=5))
    end = driven.of("bad")[-1]
    assert isinstance(end, TaskFinished) and end.failure
    assert (end.finish, end.failure.reason, end.index) == ("error", "internal", 2)
    assert sum(event.count for event in driven.of("bad") if isinstance(event, TaskTokens)) == 2
    good = driven.of("good")[-1]
    assert isinstance(good, TaskFinished) and (good.finish, good.index) == ("length", 5)


def test_a_cancelled_task_gives_what_was_held_back_and_its_slot(models: Models) -> None:
    driven = Driven(models, count_up)
    held = driven.tokenizer.decode([43, 44, 45])
    driven.tell(task("a", stop=(held + "never",)), steps=3)
    assert [type(event) for event in driven.events] == [TaskAccepted]
    driven.tell(TaskCancel("a", "r"), task("b", max_tokens=1))
    assert driven.events[1] == TaskTokens("a", 0, 3, held)
    assert isinstance(driven.events[2], TaskFinished) and driven.events[2].finish == "cancelled"
    last = driven.events[-1]
    assert isinstance(last, TaskFinished) and (last.task, last.finish) == ("b", "length")


def test_a_task_that_is_assigned_twice_runs_once(models: Models) -> None:
    driven = Driven(models, count_up)
    driven.tell(task("a", max_tokens=2), task("a", max_tokens=2))
    assert [type(event) for event in driven.events].count(TaskAccepted) == 1
    assert [type(event) for event in driven.events].count(TaskFinished) == 1


@pytest.mark.parametrize(("options", "rows"), [({}, [[0, 1], [2]]), ({"chunk": 1}, [[0], [1]])])
def test_the_proof_takes_a_prompt_and_a_step(
    models: Models, options: dict[str, int], rows: list[list[int]]
) -> None:
    driven = Driven(models, count_up, **options)
    driven.lead.prove(1)
    assert [batch.positions.tolist() for batch in driven.pipeline.batches] == rows
    assert [batch.outputs.tolist() for batch in driven.pipeline.batches] == [[len(rows[0]) - 1], [0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_proof_fails_on_numbers_that_are_none(models: Models, bad: float) -> None:
    with pytest.raises(AntfarmError) as failure:
        Driven(models, lambda last: bad).lead.prove(1)
    assert failure.value.reason == Reason.INTERNAL
