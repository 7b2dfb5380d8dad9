"""The lead: tasks in, tokens out. One loop: take commands, schedule, run, postprocess."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Batch
from antfarm.errors import AntfarmError, Reason, RequestError
from antfarm.messages import (
    Failure,
    ShardCommand,
    TaskAccepted,
    TaskAssign,
    TaskCancel,
    TaskEvent,
    TaskFinished,
)
from antfarm.model.template import ChatTemplate
from antfarm.model.tokenizer import Tokenizer
from antfarm.shard.answer import Answer, Finish
from antfarm.shard.pipeline import Pipeline
from antfarm.shard.sampler import Sampler, check
from antfarm.shard.scheduler import Scheduler
from antfarm.shard.sequence import Clock, Sequence
from antfarm.types import RunOptions

IDLE_S = 1.0  # between two looks, by a lead without work, at whether its peers are there

log = logging.getLogger(__name__)


class Lead:
    """Answers tasks with the model that `pipeline` runs. Knows no sockets, files or threads.

    What goes wrong with one task ends that task; what goes wrong with a step (a `LinkError`, a
    failure of the engine) is raised, because every task is lost with it.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        options: RunOptions,
        emit: Callable[[TaskEvent], None],
    ) -> None:
        """`options` with its `context` decided."""
        self._pipeline = pipeline
        self._tokenizer = tokenizer
        self._template = template
        self._context = options.context
        self._chunk = options.chunk
        self._emit = emit
        self._scheduler = Scheduler(options.slots, options.chunk)

    def serve(self, commands: Callable[[float], ShardCommand | None]) -> NoReturn:
        """Answer tasks until a step fails. `commands(seconds)` waits so long for the next command."""
        while True:
            while command := commands(0 if self._scheduler.busy else IDLE_S):
                self.handle(command)
            if self._scheduler.busy:
                self.step()
            else:
                self._pipeline.check()

    def handle(self, command: ShardCommand) -> None:
        if isinstance(command, TaskAssign):
            self.assign(command)
        elif isinstance(command, TaskCancel):
            self.cancel(command)
        else:
            log.warning("a lead that serves got %s", type(command).__name__)

    def prove(self) -> None:
        """Pass a real token through all shards: a prompt of two rows and a step of one, in slot 0.

        Raises `internal` when what comes back is no distribution, or what broke on the way.
        """
        token = self._tokenizer.bos or 0
        prompt = max(1, min(2, self._chunk, self._context - 1))
        for start, rows in ((0, prompt), (prompt, 1)):
            batch = Batch(
                slots=np.zeros(rows, np.int32),
                positions=np.arange(start, start + rows, dtype=np.int32),
                outputs=np.array([rows - 1], np.int32),
            )
            logits = self._pipeline.run(batch, np.full(rows, token, np.int32))
            if not np.isfinite(logits).all():
                raise AntfarmError(
                    Reason.INTERNAL,
                    "a first token through all shards came back as numbers that are not finite",
                    hint="the model file may be damaged; compare its checksum, or try another backend",
                )

    def assign(self, task: TaskAssign) -> None:
        """Take a task on; answers with `TaskAccepted`, or `TaskFinished` with the reason it can't be."""
        if self._scheduler.find(task.task):
            log.warning("task %s was assigned twice", task.task)
            return
        try:
            sequence = self._sequence(task)
            self._scheduler.add(sequence)
        except AntfarmError as error:
            self._emit(TaskFinished(task.task, 0, "error", failure=Failure.of(error)))
            return
        self._emit(TaskAccepted(task.task, len(sequence.prompt)))

    def cancel(self, command: TaskCancel) -> None:
        """End a task, waiting or running. One that is unknown has ended already."""
        sequence = self._scheduler.find(command.task)
        if sequence:
            self._end(sequence, "cancelled")

    def step(self) -> None:
        """One step for whoever is due; nothing when nobody is."""
        step = self._scheduler.schedule()
        if step is None:
            return
        began, before = time.perf_counter(), self._pipeline.traffic()
        logits = self._pipeline.run(step.batch, step.tokens)
        after = self._pipeline.traffic()
        share = (after.bytes - before.bytes) // len(step.sequences)
        for sequence in step.sequences:
            sequence.clock.step(began, share, after.waited - before.waited)
        for sequence, row in zip(step.sequences, logits, strict=False):  # most chunks give no row
            self._token(sequence, row)

    def _sequence(self, task: TaskAssign) -> Sequence:
        check(task.sampling)
        prompt = self._prompt(task)
        if not prompt:
            raise RequestError(Reason.INVALID_REQUEST, "the prompt is empty", hint="send at least one token")
        if len(prompt) >= self._context:
            raise RequestError(
                Reason.CONTEXT_OVERFLOW,
                f"the prompt has {len(prompt)} tokens; the context, answer included, holds {self._context}",
                hint="shorten the prompt, or load the model with a larger context",
                prompt_tokens=len(prompt),
                context=self._context,
            )
        room = self._context - len(prompt)
        limit = min(task.sampling.max_tokens or room, room)
        return Sequence(
            task.task,
            np.array(prompt, np.int32),
            Sampler(task.sampling, prompt),
            Answer(task.task, task.sampling, self._tokenizer, limit),
            Clock(time.perf_counter()),
        )

    def _prompt(self, task: TaskAssign) -> list[int]:
        if task.messages is not None:
            return self._tokenizer.encode(self._template.render(task.messages))
        if task.text is not None:
            return self._tokenizer.encode(task.text)
        tokens = list(task.tokens or ())
        if tokens and not 0 <= min(tokens) <= max(tokens) < self._tokenizer.size:
            raise RequestError(
                Reason.INVALID_REQUEST, f"a token id is outside the vocabulary of {self._tokenizer.size}"
            )
        return tokens

    def _token(self, sequence: Sequence, row: NDArray[np.float32]) -> None:
        try:
            sequence.last = sequence.sampler.sample(row)
        except AntfarmError as error:
            self._end(sequence, "error", Failure.of(error))
            return
        sequence.clock.token(time.perf_counter())
        if event := sequence.answer.push(sequence.last, row):
            self._emit(event)
        if sequence.answer.finish:
            self._end(sequence, sequence.answer.finish)

    def _end(self, sequence: Sequence, finish: Finish, failure: Failure | None = None) -> None:
        if not sequence.answer.finish and (event := sequence.answer.cut()):
            self._emit(event)
        self._scheduler.remove(sequence)
        count = sequence.answer.count
        timings = sequence.clock.timings(len(sequence.prompt), count)
        self._emit(TaskFinished(sequence.task, count, finish, timings, failure))
