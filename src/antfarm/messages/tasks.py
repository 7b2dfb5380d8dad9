"""A task: what the queen hands to a replica's lead, and what comes back of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from antfarm.messages.base import Failure, Message
from antfarm.types import Sampling


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model asked for. `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant's message
    tool_call_id: str = ""  # of a tool's message: the call that it answers
    name: str = ""


class Tool(msgspec.Struct, frozen=True):
    """A function that the model may call. `parameters` is a JSON schema as text; empty: it takes none.
    `strict`: a call that the model begins of itself follows it, too."""

    name: str
    description: str = ""
    parameters: str = ""
    strict: bool = False


class Wanted(msgspec.Struct, frozen=True):
    """What a task is to give. Only `answer` generates tokens; the others end in one `TaskOutput`.

    `schema` (JSON text) constrains the answer. With `tools` the answer may call them; `tool_choice`
    `required` makes it call, the one named `tool` if that is set.
    """

    kind: Literal["answer", "vector", "tokens", "text"] = "answer"
    schema: str | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "required"] = "auto"
    tool: str = ""
    parallel_calls: bool = True
    bos: bool | None = None  # None adds BOS as the model's file says
    generation_prompt: bool = True  # after messages


class TaskAssign(Message, frozen=True, tag="task-assign"):
    """The queen's hand-over of a task to the lead: exactly one of `messages`, `text` and `tokens` is set."""

    task: str
    replica: str
    epoch: int
    sampling: Sampling
    messages: tuple[ChatMessage, ...] | None = None
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    wanted: Wanted = Wanted()
    deadline: float = 0.0  # seconds that it may wait and run, all in all; 0 sets no bound


class TaskCancel(Message, frozen=True, tag="task-cancel"):
    """`TaskFinished` follows, for a task that the lead does not know, too: its end may have been lost."""

    task: str
    replica: str
    epoch: int


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token with its natural-log probability; `top` holds the alternatives, best first."""

    token: int
    text: str
    bytes: tuple[int, ...]
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class TaskAccepted(Message, frozen=True, tag="task-accepted"):
    """The prompt is tokenized and fits. `tools` names the form in which the answer calls tools."""

    task: str
    prompt_tokens: int
    tools: str = ""


class TaskTokens(Message, frozen=True, tag="task-tokens"):
    """Tokens `index .. index+count` of the answer and the text they complete (never half a character)."""

    task: str
    index: int
    count: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class TaskOutput(Message, frozen=True, tag="task-output"):
    """What a task gives that generates nothing: a vector (float32, little endian), token ids (int32, little
    endian), or a text."""

    task: str
    vector: bytes = b""
    tokens: bytes = b""
    text: str = ""


class Timings(msgspec.Struct, frozen=True):
    """What the lead's clock says of one task, and what crossed the lead's links for it."""

    queued: float  # seconds from assignment to the first prefill step
    prefill: float  # seconds to the first token
    decode: float  # seconds from the first token to the last
    prompt_tokens: int
    completion_tokens: int
    wire_bytes: int = 0  # sent and received by the lead during decode
    waited: float = 0.0  # seconds of decode that the lead waited for peers
    cached_tokens: int = 0  # of the prompt, whose KV rows a slot still held


class TaskFinished(Message, frozen=True, tag="task-finished"):
    """The last event of a task; `index` counts the answer's tokens. With `error`, `failure` says why."""

    task: str
    index: int
    finish: Literal["stop", "length", "cancelled", "error"]
    timings: Timings | None = None
    failure: Failure | None = None


TaskEvent = TaskAccepted | TaskTokens | TaskOutput | TaskFinished
