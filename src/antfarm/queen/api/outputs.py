"""Requests that generate nothing: embeddings, and text to tokens and back."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, PlainValidator, model_validator

from antfarm.errors import AntfarmError, Reason, RequestError
from antfarm.messages import ModelStatus, TaskAccepted, TaskFinished, TaskOutput, Wanted
from antfarm.queen.api.conversation import MAX_TOOLS, ChatMessageBody, ToolBody
from antfarm.queen.api.fields import MAX_INT, AnyPrompts, Body, Prompt, Seconds, Text, TokenId, prompts
from antfarm.queen.api.models import Source
from antfarm.queen.api.running import merged
from antfarm.queen.api.tally import finish_of
from antfarm.queen.tasks import TaskRequest
from antfarm.types import Sampling

MAX_INPUTS = 2048  # of one request for embeddings, as OpenAI allows
MAX_MESSAGES = 4096
MAX_IDS = 1 << 18  # to be turned to text at once
PARALLEL = 16  # tasks of one request under way

NAMED = "A loaded model. May be empty or `default` when exactly one is loaded."


class EmbeddingsRequest(Body):
    """`POST /v1/embeddings`"""

    model: Text = Field("", description=NAMED)
    input: Annotated[
        Sequence[Prompt],
        PlainValidator(lambda value: prompts(value, MAX_INPUTS), json_schema_input_type=AnyPrompts),
    ]
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64: of float32, little endian"
    )
    timeout: Seconds = None
    dimensions: int | None = Field(
        None,
        ge=1,
        le=MAX_INT,
        description="Keep so many of the model's, the first ones, scaled to length 1 again. "
        "Means little for models that were not trained for it.",
    )


class Embedding(BaseModel):
    index: int
    object: Literal["embedding"] = "embedding"
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    object: Literal["list"] = "list"
    model: str
    data: list[Embedding]
    usage: EmbeddingsUsage


class TokenizeRequest(Body):
    """`POST /tokenize`: one of `prompt`, `content` (llama.cpp's name for it) and `messages`."""

    model: Text = Field("", description=NAMED)
    prompt: Text | None = None
    content: Text | None = None
    messages: list[ChatMessageBody] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    tools: list[ToolBody] = Field([], max_length=MAX_TOOLS, description="Beside `messages`.")
    add_special_tokens: bool = Field(True, description="Put BOS in front where the model expects it.")
    add_generation_prompt: bool = Field(True, description="Begin the assistant's turn after `messages`.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(each is not None for each in (self.prompt, self.content, self.messages)) != 1:
            raise ValueError("one of prompt, content and messages is needed")
        return self

    def task(self, model: str) -> TaskRequest:
        wanted = Wanted(
            "tokens",
            tools=tuple(tool.tool() for tool in self.tools),
            bos=None if self.add_special_tokens else False,
            generation_prompt=self.add_generation_prompt,
        )
        if self.messages is not None:
            messages = tuple(each.message() for each in self.messages)
            return TaskRequest(model, Sampling(), messages=messages, wanted=wanted)
        text = self.content if self.prompt is None else self.prompt
        return TaskRequest(model, Sampling(), text=text, wanted=wanted)


class Tokenized(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(Body):
    """`POST /detokenize`"""

    model: Text = Field("", description=NAMED)
    tokens: list[TokenId] = Field(max_length=MAX_IDS)

    def task(self, model: str) -> TaskRequest:
        return TaskRequest(model, Sampling(), tokens=tuple(self.tokens), wanted=Wanted("text"))


class Detokenized(BaseModel):
    """The text, under vLLM's name and under llama.cpp's."""

    prompt: str
    content: str


async def embeddings(queen: Source, request: EmbeddingsRequest, model: ModelStatus) -> Embeddings:
    """Raises `invalid-request` for more dimensions than the model has."""
    tasks = [_embedding_task(model.model, prompt, request.timeout) for prompt in request.input]
    results = await gathered(queen, tasks, min(PARALLEL, model.room or PARALLEL))
    vectors = [_shortened(result.vector, request.dimensions) for result in results]
    count = sum(result.prompt_tokens for result in results)
    return Embeddings(
        model=model.model,
        data=[
            Embedding(index=index, embedding=_encoded(vector, request.encoding_format))
            for index, vector in enumerate(vectors)
        ],
        usage=EmbeddingsUsage(prompt_tokens=count, total_tokens=count),
    )


async def tokenized(queen: Source, request: TokenizeRequest, model: ModelStatus) -> Tokenized:
    (result,) = await gathered(queen, [request.task(model.model)])
    tokens = np.frombuffer(result.output.tokens, "<i4").tolist()
    return Tokenized(tokens=tokens, count=len(tokens), max_model_len=model.context)


async def detokenized(queen: Source, request: DetokenizeRequest, model: str) -> Detokenized:
    (result,) = await gathered(queen, [request.task(model)])
    return Detokenized(prompt=result.output.text, content=result.output.text)


@dataclass
class Result:
    """What a task gave."""

    prompt_tokens: int = 0
    given: TaskOutput | None = None

    @property
    def output(self) -> TaskOutput:
        """Raises `internal` for a task that has ended well without it: an empty one would be a lie."""
        if self.given is None:
            raise AntfarmError(Reason.INTERNAL, "the task's output was lost on its way")
        return self.given

    @property
    def vector(self) -> NDArray[np.float32]:
        return np.frombuffer(self.output.vector, "<f4")


async def gathered(queen: Source, tasks: Sequence[TaskRequest], parallel: int = PARALLEL) -> list[Result]:
    """The results of tasks, in their order, `parallel` at a time. When one fails, all end."""
    results = [Result() for _ in tasks]
    for start in range(0, len(tasks), parallel):
        sources = [queen.run(task) for task in tasks[start : start + parallel]]
        async with aclosing(merged(sources)) as events:
            async for index, event in events:
                match event:
                    case TaskAccepted():
                        results[start + index].prompt_tokens = event.prompt_tokens
                    case TaskOutput():
                        results[start + index].given = event
                    case TaskFinished():
                        finish_of(event)
    return results


def _embedding_task(model: str, prompt: Prompt, timeout: float | None) -> TaskRequest:
    text, tokens = (prompt, None) if isinstance(prompt, str) else (None, prompt)
    return TaskRequest(model, Sampling(), text=text, tokens=tokens, wanted=Wanted("vector"), deadline=timeout)


def _shortened(vector: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    if dimensions is None:
        return vector
    if dimensions > len(vector):
        raise RequestError(
            Reason.INVALID_REQUEST,
            f"dimensions: the model has {len(vector)}, not {dimensions}",
            param="dimensions",
        )
    kept = vector[:dimensions]
    length = math.sqrt(float(np.dot(kept, kept)))
    return kept / np.float32(length) if length else kept


def _encoded(vector: NDArray[np.float32], form: str) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]
