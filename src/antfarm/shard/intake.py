"""From a task to a sequence: template, tokens, and the checks that a request must pass.

It happens in a thread of its own, so that a prompt of a megabyte does not stop the others' answers.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antfarm.errors import AntfarmError, Reason, RequestError
from antfarm.messages import Failure, TaskAssign
from antfarm.model.template import ChatTemplate
from antfarm.model.tokenizer import Tokenizer
from antfarm.shard.answer import Answer
from antfarm.shard.sampler import Sampler, check
from antfarm.shard.sequence import Clock, Sequence

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of a task's request: a sequence to run, or why it can't be."""

    task: str
    outcome: Sequence | Failure


class Intake:
    """Knows the model's language, and how many tokens fit."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, context: int) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._context = context

    def prepare(self, task: TaskAssign, arrived: float) -> Prepared:
        """`arrived` is a time of `time.perf_counter`."""
        try:
            return Prepared(task.task, self._sequence(task, arrived))
        except AntfarmError as error:
            return Prepared(task.task, Failure.of(error))
        except Exception as error:
            log.exception("task %s can't be prepared", task.task)
            text = f"the request can't be prepared: {type(error).__name__}: {error}"
            return Prepared(task.task, Failure(Reason.INTERNAL, text))

    def start(self, done: Callable[[Prepared], None]) -> Callable[[TaskAssign], None]:
        """Prepare tasks in the background, one after the other. Returns where to put them; `done` is called
        in the background with each."""
        tasks: queue.SimpleQueue[tuple[TaskAssign, float]] = queue.SimpleQueue()

        def work() -> None:
            while True:
                done(self.prepare(*tasks.get()))

        threading.Thread(target=work, name="intake", daemon=True).start()
        return lambda task: tasks.put((task, time.perf_counter()))

    def _sequence(self, task: TaskAssign, arrived: float) -> Sequence:
        check(task.sampling)
        prompt = self._prompt(task)
        if not prompt:
            raise RequestError(Reason.INVALID_REQUEST, "the prompt is empty", hint="send at least one token")
        if len(prompt) >= self._context:
            raise self._overflow(f"has {len(prompt)} tokens", len(prompt))
        room = self._context - len(prompt)
        limit = min(task.sampling.max_tokens or room, room)
        return Sequence(
            task.task,
            np.array(prompt, np.int32),
            Sampler(task.sampling, prompt),
            Answer(task.task, task.sampling, self.tokenizer, limit),
            Clock(arrived),
            arrived + task.deadline if task.deadline else math.inf,
        )

    def _prompt(self, task: TaskAssign) -> list[int]:
        if task.messages is not None:
            return self._encode(self._template.render(task.messages))
        if task.text is not None:
            return self._encode(task.text)
        tokens = list(task.tokens or ())
        size = self.tokenizer.size
        if tokens and not 0 <= min(tokens) <= max(tokens) < size:
            raise RequestError(Reason.INVALID_REQUEST, f"a token id is outside the vocabulary of {size}")
        return tokens

    def _encode(self, text: str) -> list[int]:
        least = len(text) // self.tokenizer.longest
        if least >= self._context:  # not worth the time to say it exactly
            raise self._overflow(f"has {len(text)} characters, at least {least} tokens", least)
        return self.tokenizer.encode(text)

    def _overflow(self, what: str, tokens: int) -> RequestError:
        return RequestError(
            Reason.CONTEXT_OVERFLOW,
            f"the prompt {what}; the context, answer included, holds {self._context}",
            hint="shorten the prompt, or load the model with a larger context",
            prompt_tokens=tokens,
            context=self._context,
        )
