"""The lead: tasks in, tokens out. One loop: take commands, send a step off, or take one's result in."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Batch
from antfarm.errors import AntfarmError, Reason, StateError
from antfarm.messages import (
    Failure,
    LeadStats,
    ShardCommand,
    TaskAccepted,
    TaskAssign,
    TaskCancel,
    TaskEvent,
    TaskFinished,
    TaskOutput,
)
from antfarm.shard.answer import Finish
from antfarm.shard.intake import Prepared
from antfarm.shard.pacing import Kind
from antfarm.shard.pipeline import Pipeline, Traffic
from antfarm.shard.pooling import Pool
from antfarm.shard.scheduler import Scheduler, Step
from antfarm.shard.sequence import Sequence
from antfarm.types import RunOptions

IDLE_S = 1.0  # between two looks, by a lead without work, at whether its peers are there

Command = ShardCommand | Prepared

log = logging.getLogger(__name__)


class Lead:
    """Answers tasks with the model that `pipeline` runs. Knows no sockets, files or threads.

    What goes wrong with one task ends that task; what goes wrong with a step (a `LinkError`, a
    failure of the engine) is raised, because every task is lost with it.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: RunOptions,
        stages: int,
        prepare: Callable[[TaskAssign], None],
        emit: Callable[[*tuple[TaskEvent, ...]], None],
    ) -> None:
        """`options` with context and slots decided. `prepare` takes a task, and a `Prepared` command
        comes of it later. `emit(*events)` takes what a step or a command gave, all at once: whoever
        passes it on is woken once, and not for each stream."""
        self._pipeline = pipeline
        self._options = options
        self._prepare = prepare
        self._emit = emit
        self._said: list[TaskEvent] = []  # not emitted yet
        self._scheduler = Scheduler(options, stages)
        self._preparing: set[str] = set()  # tasks that are to run once they are prepared
        self._began: deque[float] = deque()  # when the steps under way began
        self._collected = 0.0  # when the last result was done with
        self._traffic = Traffic(0, 0.0)
        self._prompt_tokens = self._cached_tokens = self._tokens = 0
        self._decode_steps = self._decode_rows = 0

    def serve(self, commands: Callable[[float], Command | None]) -> NoReturn:
        """Answer tasks until a step fails. `commands(seconds)` waits so long for the next command."""
        while True:
            while command := commands(0 if self._scheduler.busy else IDLE_S):
                self.handle(command)
            if self._scheduler.busy:
                self.step()
            else:
                self._pipeline.check()

    def handle(self, command: Command) -> None:
        if isinstance(command, TaskAssign):
            self._assign(command)
        elif isinstance(command, Prepared):
            self._admit(command)
        elif isinstance(command, TaskCancel):
            self._cancel(command)
        else:
            log.warning("a lead that serves got %s", type(command).__name__)
        self._tell()

    def prove(self, token: int) -> None:
        """Pass a real token through all shards: a prompt of two rows and a step of one, in slot 0.

        Raises `internal` when what comes back is no distribution, or what broke on the way.
        """
        prompt = max(1, min(2, self._options.chunk, self._options.context - 1))
        for start, rows in ((0, prompt), (prompt, 1)):
            batch = Batch(
                slots=np.zeros(rows, np.int32),
                positions=np.arange(start, start + rows, dtype=np.int32),
                outputs=np.array([rows - 1], np.int32),
            )
            self._pipeline.submit(batch, np.full(rows, token, np.int32))
            if not np.isfinite(self._pipeline.collect()).all():
                raise AntfarmError(
                    Reason.INTERNAL,
                    "a first token through all shards came back as numbers that are not finite",
                    hint="the model file may be damaged; compare its checksum, or try another backend",
                )

    def step(self) -> None:
        """Send the next step off, or take the oldest one's result in."""
        try:
            self._expire(time.perf_counter())
            step = self._scheduler.schedule()
            if step:
                self._submit(step)
            elif step := self._scheduler.oldest:
                self._collect(step)
        finally:  # what was said before a step failed is true
            self._tell()

    def stats(self) -> LeadStats:
        """May be called from another thread."""
        slots = self._scheduler.slots
        return LeadStats(
            waiting=self._scheduler.waiting,
            running=slots.count - slots.free,
            slots=slots.count,
            kv_rows=slots.rows,
            kv_capacity=slots.capacity,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            tokens=self._tokens,
            decode_steps=self._decode_steps,
            decode_rows=self._decode_rows,
        )

    # ---- tasks

    def _assign(self, task: TaskAssign) -> None:
        """Take a task on; `TaskAccepted` follows, or `TaskFinished` with the reason why it can't be."""
        if task.task in self._preparing or self._scheduler.find(task.task):
            log.warning("task %s was assigned twice", task.task)
        elif self._scheduler.room <= len(self._preparing):
            self._refuse(task.task, Failure.of(self._full()))
        else:
            self._preparing.add(task.task)
            self._prepare(task)

    def _cancel(self, command: TaskCancel) -> None:
        """End a task, waiting or running. One that is unknown has ended already, and that is said again."""
        sequence = self._scheduler.find(command.task)
        if sequence:
            self._end(sequence, "cancelled")
        else:
            self._preparing.discard(command.task)
            self._said.append(TaskFinished(command.task, 0, "cancelled"))

    def _admit(self, prepared: Prepared) -> None:
        if prepared.task not in self._preparing:
            return  # cancelled meanwhile
        self._preparing.remove(prepared.task)
        if isinstance(prepared.outcome, Failure):
            self._refuse(prepared.task, prepared.outcome)
            return
        if isinstance(prepared.outcome, TaskOutput):
            self._said.append(prepared.outcome)
            self._said.append(TaskFinished(prepared.task, 0, "stop"))
            return
        self._scheduler.add(prepared.outcome)
        self._said.append(TaskAccepted(prepared.task, len(prepared.outcome.prompt), prepared.outcome.tools))

    def _tell(self) -> None:
        said, self._said = self._said, []
        if said:
            self._emit(*said)

    def _full(self) -> StateError:
        return StateError(
            Reason.QUEUE_FULL,
            f"{self._options.queue} tasks wait for this model already",
            hint="try again later",
        )

    def _refuse(self, task: str, failure: Failure) -> None:
        self._said.append(TaskFinished(task, 0, "error", failure=failure))

    def _expire(self, now: float) -> None:
        """End what has run, or waited, beyond its deadline."""
        for sequence in [s for s in self._scheduler.sequences() if s.deadline <= now]:
            text = "the task's time was up before its answer was complete"
            hint = "ask for fewer tokens, or allow more time"
            self._end(sequence, "error", Failure(Reason.TIMEOUT, text, hint))

    def _end(
        self, sequence: Sequence, finish: Finish, failure: Failure | None = None, *, sound: bool = True
    ) -> None:
        if not sequence.answer.finish and (event := sequence.answer.cut()):
            self._said.append(event)
        self._scheduler.remove(sequence, sound=sound)
        count = sequence.answer.count
        timings = sequence.clock.timings(len(sequence.prompt), count, sequence.cached)
        self._said.append(TaskFinished(sequence.task, count, finish, timings, failure))

    # ---- steps

    def _submit(self, step: Step) -> None:
        now = time.perf_counter()
        self._began.append(now)
        for sequence in step.sequences:
            if sequence.clock.begin(now):
                self._prompt_tokens += len(sequence.prompt)
                self._cached_tokens += sequence.cached
        self._pipeline.submit(step.batch, step.tokens)

    def _collect(self, step: Step) -> None:
        pool = step.sequences[0].pool
        rows = self._pipeline.collect_hidden() if pool else self._pipeline.collect()
        traffic = self._pipeline.traffic()
        share = (traffic.bytes - self._traffic.bytes) // len(step.sequences)
        waited = traffic.waited - self._traffic.waited
        self._traffic = traffic
        for sequence in step.sequences:
            sequence.clock.crossed(share, waited)
        for sequence, row in zip(step.sequences, rows, strict=False):  # most chunks give no row
            if sequence.answer.finish:  # it was cancelled meanwhile
                continue
            if pool:
                self._pool(sequence, pool, rows)
            else:
                self._token(sequence, row)
        if step.turn.kind is Kind.ANSWER:
            self._decode_steps += 1
            self._decode_rows += step.batch.rows
        now = time.perf_counter()
        self._scheduler.finish(now - max(self._began.popleft(), self._collected))
        self._collected = now

    def _pool(self, sequence: Sequence, pool: Pool, rows: NDArray[np.float32]) -> None:
        pool.add(rows)
        if not pool.complete:
            return
        sequence.clock.token(time.perf_counter())
        try:
            vector = pool.vector()
        except AntfarmError as error:
            self._end(sequence, "error", Failure.of(error), sound=False)
            return
        self._said.append(TaskOutput(sequence.task, vector.tobytes()))
        self._end(sequence, "stop")

    def _token(self, sequence: Sequence, row: NDArray[np.float32]) -> None:
        try:
            sequence.last = sequence.sampler.sample(row)
            event = sequence.answer.push(sequence.last, row, last=sequence.sampler.complete)
        except AntfarmError as error:
            self._end(sequence, "error", Failure.of(error), sound=False)
            return
        except Exception as error:  # the other tasks go on
            log.exception("the next token of task %s can't be chosen", sequence.task)
            text = f"the next token can't be chosen: {type(error).__name__}: {error}"
            sequence.answer.finish = "error"  # what it holds back may be what is broken
            self._end(sequence, "error", Failure(Reason.INTERNAL, text), sound=False)
            return
        sequence.clock.token(time.perf_counter())
        self._tokens += 1
        if event:
            self._said.append(event)
        if sequence.answer.finish:
            self._end(sequence, sequence.answer.finish)
