"""From a task to a sequence: template, tokens, and the checks that a request must pass.

It happens in a thread of its own, so that a prompt of a megabyte does not stop the others' answers.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec
import numpy as np

from antfarm.errors import AntfarmError, ModelError, Reason, RequestError
from antfarm.messages import Failure, TaskAssign, TaskOutput, Wanted
from antfarm.model.gguf import GgufFile
from antfarm.model.schema import STACK, check_schema
from antfarm.model.template import ChatTemplate
from antfarm.model.tokenizer import Tokenizer
from antfarm.model.toolform import CALL_END, ToolForm, grammar
from antfarm.shard.answer import Answer
from antfarm.shard.constraint import Constraint, Grammars
from antfarm.shard.pooling import MEAN, SUPPORTED, Pool, pooling_of
from antfarm.shard.sampler import Sampler, check
from antfarm.shard.sequence import Clock, Sequence

MAX_TEXT = 1 << 20  # bytes turned to tokens, or from them, at once: what a line of the pipe has room for
SHORT = 1 << 15  # characters of a text that is prepared in a few hundredths of a second

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of a task's request: a sequence to run, all that was asked for, or why it can't be."""

    task: str
    outcome: Sequence | TaskOutput | Failure


class Intake:
    """Knows the model's language, how many tokens fit, and how vectors are pooled."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, context: int, pooling: str = MEAN
    ) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._context = context
        self._pooling = pooling
        self._grammars = Grammars(tokenizer)

    @classmethod
    def from_gguf(cls, file: GgufFile, context: int) -> Intake:
        """Raises `unsupported-tokenizer`, `bad-chat-template`."""
        tokenizer, rows = Tokenizer.from_gguf(file), file.facts.vocabulary
        if tokenizer.size > rows:  # a request for one of the others would end the shard
            raise ModelError(
                Reason.UNSUPPORTED_TOKENIZER,
                f"{file.path}: the model has {tokenizer.size} tokens, and an embedding for {rows} of them",
                hint="take another model file",
            )
        return cls(tokenizer, ChatTemplate.from_gguf(file), context, pooling_of(file))

    def prepare(self, task: TaskAssign, arrived: float) -> Prepared:
        """`arrived` is a time of `time.perf_counter`."""
        try:
            if task.wanted.kind == "tokens":
                return Prepared(task.task, TaskOutput(task.task, tokens=self._tokens(task)))
            if task.wanted.kind == "text":
                return Prepared(task.task, TaskOutput(task.task, text=self._text(task)))
            return Prepared(task.task, self._sequence(task, arrived))
        except AntfarmError as error:
            return Prepared(task.task, Failure.of(error))
        except BaseException as error:  # a panic of a library in Rust is no Exception
            log.exception("task %s can't be prepared", task.task)
            text = f"the request can't be prepared: {type(error).__name__}: {error}"
            return Prepared(task.task, Failure(Reason.INTERNAL, text))

    def start(self, done: Callable[[Prepared], None]) -> Callable[[TaskAssign], None]:
        """Prepare tasks in the background, in their order; short ones do not wait for long ones. Returns
        where to put them; `done` is called in the background with each."""

        def work(tasks: queue.SimpleQueue[tuple[TaskAssign, float]]) -> None:
            while True:
                done(self.prepare(*tasks.get()))

        def lane(name: str) -> queue.SimpleQueue[tuple[TaskAssign, float]]:
            tasks: queue.SimpleQueue[tuple[TaskAssign, float]] = queue.SimpleQueue()
            threading.Thread(target=work, args=(tasks,), name=name, daemon=True).start()
            return tasks

        before = threading.stack_size(STACK)
        short, long = lane("intake"), lane("intake-long")
        threading.stack_size(before)
        return lambda task: (long if _length(task) > SHORT else short).put((task, time.perf_counter()))

    def _sequence(self, task: TaskAssign, arrived: float) -> Sequence:
        check(task.sampling)
        self._check_ids(task.sampling.logit_bias, "logit_bias")
        pool = self._pool(task)
        prompt = self._prompt(task)
        if not prompt:
            raise RequestError(Reason.INVALID_REQUEST, "the prompt is empty", hint="send at least one token")
        if len(prompt) >= self._context:
            raise self._overflow(task, f"has {len(prompt)} tokens", len(prompt))
        room = self._context - len(prompt)
        limit = min(task.sampling.max_tokens or room, room)
        sampling, form = task.sampling, self._template.tools.form
        constraint = self._constraint(task.wanted, form)
        if task.wanted.tools and not task.wanted.parallel_calls and form is ToolForm.HERMES:
            sampling = msgspec.structs.replace(sampling, stop=(*sampling.stop, CALL_END))
        return Sequence(
            task.task,
            np.array(prompt, np.int32),
            Sampler(sampling, prompt, constraint),
            Answer(task.task, sampling, self.tokenizer, limit),
            Clock(arrived),
            arrived + task.deadline if task.deadline else math.inf,
            tools=form if task.wanted.tools else "",
            pool=Pool(pool, len(prompt)) if pool else None,
        )

    def _prompt(self, task: TaskAssign) -> list[int]:
        try:
            text = self._written(task)
            if text is not None:
                return self._encoded(task, text)
        except RequestError as error:
            error.numbers.setdefault("param", _field(task))
            raise
        self._check_ids(task.tokens or (), _field(task))
        return list(task.tokens or ())

    def _written(self, task: TaskAssign) -> str | None:
        """The prompt's text; None when it came as tokens."""
        if task.messages is None:
            return task.text
        wanted = task.wanted
        return self._template.render(
            task.messages, wanted.tools, add_generation_prompt=wanted.generation_prompt
        )

    def _tokens(self, task: TaskAssign) -> bytes:
        text = self._written(task) or ""
        _check_size(len(text.encode(errors="replace")))
        pieces = self.tokenizer.pieces(text, bos=task.wanted.bos)
        return b"".join(np.array(piece, "<i4").tobytes() for piece in pieces)

    def _text(self, task: TaskAssign) -> str:
        tokens = task.tokens or ()
        self._check_ids(tokens, "tokens")
        _check_size(sum(len(self.tokenizer.token_bytes(token)) for token in tokens))
        return self.tokenizer.decode(tokens, special=True)

    def _constraint(self, wanted: Wanted, form: ToolForm) -> Constraint | None:
        """What the answer is held to. Made here: compiling may take some tens of milliseconds."""
        for index, tool in enumerate(wanted.tools):
            check_schema(tool.parameters or "{}", f"tools[{index}].function.parameters")
        if wanted.schema is not None:
            check_schema(wanted.schema, "response_format")
        source = grammar(wanted, form)
        if source is None:
            return None
        return self._grammars.compile(source, "tools" if wanted.schema is None else "response_format")

    def _pool(self, task: TaskAssign) -> str:
        """How the task's rows are pooled; empty when it wants no vector."""
        if task.wanted.kind != "vector":
            return ""
        if self._pooling not in SUPPORTED:
            raise RequestError(
                Reason.INVALID_REQUEST,
                f"the model's vectors are pooled by {self._pooling!r}; supported are {', '.join(SUPPORTED)}",
                hint="take another model for embeddings",
                param="model",
            )
        return self._pooling

    def _check_ids(self, tokens: Collection[int], param: str) -> None:
        size = self.tokenizer.size
        if tokens and not 0 <= min(tokens) <= max(tokens) < size:
            raise RequestError(
                Reason.INVALID_REQUEST,
                f"{param}: a token id is outside the vocabulary of {size}",
                param=param,
            )

    def _encoded(self, task: TaskAssign, text: str) -> list[int]:
        """Only so far as it fits: how long a text is that does not is not worth the time to say exactly."""

        def check(least: int) -> None:
            if least >= self._context:
                raise self._overflow(task, f"has {len(text)} characters, at least {least} tokens", least)

        check(len(text) // self.tokenizer.longest)
        tokens: list[int] = []
        for piece in self.tokenizer.pieces(text, ended=task.wanted.kind == "vector"):
            check(len(tokens))
            tokens += piece
        return tokens

    def _overflow(self, task: TaskAssign, what: str, tokens: int) -> RequestError:
        field = _field(task)
        name, room = "prompt", f"the context, answer included, holds {self._context}"
        if field == "input":  # which has no answer
            name, room = field, f"at most {self._context - 1} fit"
        return RequestError(
            Reason.CONTEXT_OVERFLOW,
            f"the {name} {what}; {room}",
            hint=f"shorten the {name}, or load the model with a larger context",
            prompt_tokens=tokens,
            context=self._context,
            param=field,
        )


def _field(task: TaskAssign) -> str:
    """The field of the request that the prompt came in."""
    if task.messages is not None:
        return "messages"
    return "input" if task.wanted.kind == "vector" else "prompt"


def _length(task: TaskAssign) -> int:
    """Characters or tokens that are to be converted."""
    messages = sum(len(message.content) for message in task.messages or ())
    return messages + len(task.text or "") + len(task.tokens or ())


def _check_size(size: int) -> None:
    if size > MAX_TEXT:
        raise RequestError(
            Reason.INVALID_REQUEST,
            f"the text has {size} bytes; at most {MAX_TEXT} are converted at once",
            hint="send it in pieces",
        )
