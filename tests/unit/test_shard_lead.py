"""The lead's decisions, with a model whose logits the test writes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from support.models import Models
from support.panic import Panic

from antfarm.batch import Batch
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import (
    ShardCommand,
    TaskAccepted,
    TaskAssign,
    TaskCancel,
    TaskEvent,
    TaskFinished,
    TaskOutput,
    TaskTokens,
    Wanted,
)
from antfarm.model.gguf import GgufFile
from antfarm.model.template import ChatTemplate
from antfarm.model.tokenizer import Tokenizer
from antfarm.shard import constraint
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

    def collect_hidden(self) -> NDArray[np.float32]:
        """Rows of which each holds its token's next one."""
        batch, tokens = self._flying.popleft()
        return np.array([[1, self._next(last)] for last in tokens[batch.outputs].tolist()], np.float32)

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
        self.lead = Lead(self.pipeline, run, stages, self.prepare, self.hear)  # type: ignore[arg-type]

    def hear(self, *events: TaskEvent) -> None:
        self.events += events

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


def test_what_was_said_before_a_step_fails_is_told(models: Models) -> None:
    driven = Driven(models, count_up, slots=2)
    driven.lead.handle(msgspec.structs.replace(task("late"), deadline=1e-9))
    driven.lead.handle(task("a"))

    def broken(batch: Batch, tokens: NDArray[np.int32]) -> None:
        raise AntfarmError(Reason.INTERNAL, "a peer is gone")

    driven.pipeline.submit = broken  # type: ignore[method-assign]
    with pytest.raises(AntfarmError, match="a peer is gone"):
        driven.lead.step()
    end = driven.of("late")[-1]
    assert isinstance(end, TaskFinished) and end.failure and end.failure.reason == "timeout"


def test_rows_that_mean_nothing_end_their_task_alone(models: Models) -> None:
    driven = Driven(models, lambda last: float("nan") if last == 50 else last + 1, slots=2)
    driven.tell(task("bad", (48,)), task("good", (60,), max_tokens=5))
    end = driven.of("bad")[-1]
    assert isinstance(end, TaskFinished) and end.failure
    assert (end.finish, end.failure.reason, end.index) == ("error", "internal", 2)
    assert sum(event.count for event in driven.of("bad") if isinstance(event, TaskTokens)) == 2
    good = driven.of("good")[-1]
    assert isinstance(good, TaskFinished) and (good.finish, good.index) == ("length", 5)


def test_a_vector_that_means_nothing_ends_its_task_alone(models: Models) -> None:
    driven = Driven(models, lambda last: float("nan") if last == 50 else last + 1)
    bad, good = (
        msgspec.structs.replace(task(name, tokens), wanted=Wanted("vector"))
        for name, tokens in (("bad", (48, 50)), ("good", (2, 3)))
    )
    driven.tell(bad, good)
    end = driven.of("bad")[-1]
    assert isinstance(end, TaskFinished) and end.failure
    assert (end.finish, end.failure.reason) == ("error", "internal")
    assert not [event for event in driven.of("bad") if isinstance(event, TaskOutput)]
    output, end = driven.of("good")[1:]
    assert isinstance(output, TaskOutput) and isinstance(end, TaskFinished) and end.finish == "stop"
    expected = np.array([2, 7]) / 53**0.5  # of rows [1, 3] and [1, 4]
    np.testing.assert_allclose(np.frombuffer(output.vector, "<f4"), expected, rtol=1e-6)


@pytest.mark.parametrize("part", ["sampler", "answer"])
def test_what_nobody_foresaw_ends_its_task_alone(
    models: Models, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    driven = Driven(models, count_up, slots=2)
    driven.tell(task("bad", (48,)), task("good", (60,), max_tokens=5), steps=2)
    broken = driven.lead._scheduler.find("bad")
    assert broken
    setattr(broken, part, _Broken(getattr(broken, part)))
    driven.tell()
    end = driven.of("bad")[-1]
    assert isinstance(end, TaskFinished) and end.failure
    assert (end.finish, end.failure.reason) == ("error", "internal")
    assert "IndexError: beyond" in end.failure.message
    assert "task bad" in caplog.text
    good = driven.of("good")[-1]
    assert isinstance(good, TaskFinished) and (good.finish, good.index) == ("length", 5)
    driven.tell(task("again", (48,), max_tokens=1))
    last = driven.of("again")[-1]
    assert isinstance(last, TaskFinished) and last.finish == "length"


def test_a_grammar_that_panics_ends_its_task_alone(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    def panics(*_: object) -> None:
        raise Panic("index out of bounds")

    driven = Driven(models, count_up, slots=2)
    held = msgspec.structs.replace(task("bad"), wanted=Wanted(schema="{}"))
    driven.tell(held, task("good", (60,), max_tokens=5), steps=0)
    monkeypatch.setattr(constraint, "fill_next_token_bitmask", panics)
    driven.tell()
    end, good = driven.of("bad")[-1], driven.of("good")[-1]
    assert isinstance(end, TaskFinished) and end.failure
    assert (end.finish, end.failure.reason) == ("error", "internal")
    assert "index out of bounds" in end.failure.message
    assert isinstance(good, TaskFinished) and (good.finish, good.index) == ("length", 5)


class _Broken:
    """What it stands for, but nothing more comes of it."""

    def __init__(self, whole: object) -> None:
        self.__dict__.update(vars(whole))

    def __getattr__(self, name: str) -> object:
        raise IndexError("beyond")


def test_a_cancelled_task_gives_what_was_held_back_and_its_slot(models: Models) -> None:
    driven = Driven(models, count_up)
    held = driven.tokenizer.decode([43, 44, 45])
    driven.tell(task("a", stop=(held + "never",)), steps=3)
    assert [type(event) for event in driven.events] == [TaskAccepted]
    driven.tell(TaskCancel("a", "r", 1), task("b", max_tokens=1))
    assert driven.events[1] == TaskTokens("a", 0, 3, held)
    assert isinstance(driven.events[2], TaskFinished) and driven.events[2].finish == "cancelled"
    last = driven.events[-1]
    assert isinstance(last, TaskFinished) and (last.task, last.finish) == ("b", "length")


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("steps", range(1, 7))
def test_a_cancelled_tasks_slot_is_the_next_steps(models: Models, stages: int, steps: int) -> None:
    """Between its steps or while one is under way: not one more begins, none of its tokens is told, and the
    one that waits is read as soon as there is room for a step."""
    driven = Driven(models, count_up, stages=stages)
    driven.lead.handle(task("a", tuple(range(40, 50))))  # two chunks
    driven.lead.handle(task("b", (80, 81)))
    for _ in range(steps):
        driven.lead.step()
    begun = len(driven.pipeline.batches)
    driven.lead.handle(TaskCancel("a", "r", 1))
    end = driven.of("a")[-1]
    assert isinstance(end, TaskFinished) and end.finish == "cancelled"
    assert (driven.lead.stats().running, driven.lead.stats().waiting) == (0, 1)
    driven.lead.step()
    if len(driven.pipeline.batches) == begun:  # a result was taken in first
        driven.lead.step()
    (batch,) = driven.pipeline.batches[begun:]
    assert batch.positions.tolist() == [0, 1] and driven.lead.stats().running == 1
    driven.tell(steps=20)
    assert driven.of("a")[-1] is end


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


class Costly(Scripted):
    """Each step moves a made-up clock on, as a model of 1 B parameters on one core would."""

    def __init__(self, scripted: Scripted) -> None:
        super().__init__(scripted._size, scripted._next)
        self.now = 0.0
        self.noise = np.random.default_rng(1)

    def submit(self, batch: Batch, tokens: NDArray[np.int32]) -> None:
        super().submit(batch, tokens)
        alone = 0.030 + 0.0148 * batch.rows if batch.is_chunk else 0.025 * (batch.rows + 1)
        attention = 1e-8 * batch.rows * float(batch.positions[-1]) * 100
        self.now += (alone + attention) * self.noise.uniform(0.9, 1.3)


@pytest.fixture
def costly(models: Models, monkeypatch: pytest.MonkeyPatch) -> Driven:
    driven = Driven(models, lambda last: 40 + last % 60, context=4096, slots=5, chunk=128)
    driven.pipeline = clock = Costly(driven.pipeline)
    driven.lead._pipeline = clock  # type: ignore[assignment]
    monkeypatch.setattr("antfarm.shard.lead.time.perf_counter", lambda: clock.now)
    return driven


def prompt_seconds(driven: Driven, task_: TaskAssign) -> float:
    """From the task's assignment to its first token."""
    clock = driven.pipeline
    assert isinstance(clock, Costly)
    began = clock.now
    driven.lead.handle(task_)
    while not any(isinstance(event, TaskTokens) for event in driven.of(task_.task)):
        driven.lead.step()
    return clock.now - began


def test_while_a_long_prompt_is_read_four_streams_go_on(costly: Driven) -> None:
    """Together they keep 45 % of their rate, and no pause is longer than ten undisturbed ones."""
    clock = costly.pipeline
    assert isinstance(clock, Costly)
    for i in range(4):
        costly.lead.handle(task(f"s-{i}", (40 + i,) * 10, ignore_eos=True))
    costly.tell(steps=50)
    heard: dict[str, list[float]] = {f"s-{i}": [] for i in range(4)}

    def emit(*events: TaskEvent) -> None:
        for event in events:
            if event.task in heard:
                heard[event.task].append(clock.now)
        costly.hear(*events)

    costly.lead._emit = emit
    costly.tell(steps=100)
    quiet = np.diff([heard[each] for each in heard])
    for each in heard.values():
        del each[:-1]
    seconds = prompt_seconds(costly, task("long", tuple(50 + i % 40 for i in range(2000)), max_tokens=1))
    pauses = np.concatenate([np.diff(each) for each in heard.values()])
    assert len(pauses) / seconds >= 0.45 * 4 / quiet.mean()
    assert pauses.max() <= 10 * np.median(quiet)
    alone = 2000 * (0.0148 + 0.030 / 128)
    assert seconds < 3 * alone  # half of the time is the prompt's, and its chunks are shorter


def test_with_nobody_to_disturb_a_prompt_is_read_in_whole_chunks(costly: Driven) -> None:
    prompt_seconds(costly, task("long", tuple(50 + i % 40 for i in range(2000)), max_tokens=1))
    chunks = [batch.rows for batch in costly.pipeline.batches]
    assert chunks == [128] * 15 + [80]


def test_a_task_ends_when_its_time_is_up(costly: Driven) -> None:
    costly.tell(task("never", (41,), max_tokens=5), steps=20)
    late = msgspec.structs.replace(task("late", (42,)), deadline=0.5)
    costly.tell(late, steps=200)
    end = costly.of("late")[-1]
    assert isinstance(end, TaskFinished) and end.failure
    assert (end.finish, end.failure.reason) == ("error", "timeout")
    assert end.timings and 0.4 < end.timings.decode < 0.7
    last = costly.of("never")[-1]
    assert isinstance(last, TaskFinished) and last.finish == "length"


def test_rows_that_mean_nothing_are_not_reused(models: Models) -> None:
    driven = Driven(models, lambda last: float("nan") if last == 50 else last + 1)
    driven.tell(task("bad", tuple(range(40, 50))), task("again", tuple(range(40, 50)), max_tokens=1))
    end = driven.of("again")[-1]
    assert isinstance(end, TaskFinished) and end.timings and end.timings.cached_tokens == 0


def test_a_task_cancelled_while_it_is_prepared_never_runs(models: Models) -> None:
    driven = Driven(models, count_up)
    driven.lead._prepare = lambda task: None  # it takes its time
    late = task("a")
    driven.tell(late, TaskCancel("a", "r", 1), driven.intake.prepare(late, 0.0))  # type: ignore[arg-type]
    assert driven.events == [TaskFinished("a", 0, "cancelled")]
    assert not driven.pipeline.batches


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_steps_under_way_do_not_change_answers(models: Models, stages: int) -> None:
    alone = Driven(models, lambda last: 40 + last * 7 % 60)
    many = Driven(models, lambda last: 40 + last * 7 % 60, stages=stages, slots=3)
    tasks = [task(f"t-{i}", tuple(range(40, 50 + 3 * i)), max_tokens=9) for i in range(7)]
    for each in tasks:
        alone.tell(each)
    many.tell(*tasks, steps=300)
    for each in tasks:
        ours, theirs = ([e for e in d.of(each.task) if isinstance(e, TaskTokens)] for d in (many, alone))
        assert ours == theirs and sum(e.count for e in ours) == 9
