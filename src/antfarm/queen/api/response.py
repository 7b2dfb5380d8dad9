"""What clients get: OpenAI's answers, field by field. Dump them with `exclude_unset=True`: a field that
OpenAI leaves out stays out, one that it sends as null is set to None.

`timings` is the one extension: what the lead measured, on whole answers and beside a stream's usage.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

Finish = Literal["stop", "length", "tool_calls"]


class PromptDetails(BaseModel):
    """`cached_tokens` of a prompt were not read anew: a slot still held what they give."""

    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Timings(BaseModel):
    """Extension: seconds and rates of the answer that took longest, and what its decoding cost the
    lead's links: bytes sent and received, and seconds that it waited for its peers."""

    queued_s: float
    prompt_s: float
    answer_s: float
    prompt_tokens_per_second: float
    answer_tokens_per_second: float
    wire_bytes: int
    waited_s: float


class Reply(BaseModel):
    """What every answer and every chunk of a stream starts with."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str | None = None


# ---- chat


class Alternative(BaseModel):
    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprob(Alternative):
    top_logprobs: list[Alternative]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class FunctionCall(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(BaseModel):
    """`content` is null when the answer is calls alone."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] = []


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(Reply):
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings | None = None


class FunctionDelta(BaseModel):
    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """The first of a call has its `id`, `type` and name, the others more of its arguments."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(BaseModel):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatChunk(Reply):
    choices: list[ChunkChoice]
    usage: Usage | None = None
    timings: Timings | None = None


# ---- plain completions


class TextLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(BaseModel):
    """`finish_reason` is null in all but the last chunk of a stream."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish | None


class TextCompletion(Reply):
    """A whole plain completion, and just as well a chunk of a streamed one."""

    choices: list[TextChoice]
    usage: Usage | None = None
    timings: Timings | None = None


# ---- models, health, errors


class ModelCard(BaseModel):
    """`state` and `context_length` are extensions."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["antfarm"] = "antfarm"
    state: str
    context_length: int


class ModelCards(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class ModelHealth(BaseModel):
    model: str
    state: str
    reason: str | None = None


class Health(BaseModel):
    status: Literal["ok", "not-ready"]
    models: list[ModelHealth] = []


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str


class ErrorBody(BaseModel):
    error: ErrorDetail
