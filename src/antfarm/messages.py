"""Every message of the colony: on the bus, and between a forager and its shard processes.

Tagged, strict, versioned by the subject prefix. JSON on the bus so that `nats sub '>'` is readable;
the same structs travel as JSON lines over a shard's stdin and stdout. No message carries activations.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from antfarm.errors import AntfarmError, Reason
from antfarm.types import Memory, ModelFacts, Plan, RunOptions, Sampling


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of all messages; subclasses set `tag`."""


class Failure(Message, frozen=True, tag="failure"):
    """An `AntfarmError` on its way to another process."""

    reason: str
    message: str
    hint: str = ""
    numbers: dict[str, int | float | str] = {}

    @classmethod
    def of(cls, error: AntfarmError) -> Failure:
        return cls(error.reason, error.message, error.hint, dict(error.numbers))

    def error(self) -> AntfarmError:
        """The error to raise here. A reason this version does not know becomes `internal`."""
        try:
            reason = Reason(self.reason)
        except ValueError:
            reason = Reason.INTERNAL
        error = AntfarmError(reason, self.message, hint=self.hint)
        error.numbers = dict(self.numbers)
        return error


class Done(Message, frozen=True, tag="done"):
    """The plain yes to a request."""


# ---- the registry


class ForagerFacts(Message, frozen=True, tag="forager"):
    """What a forager says of its host; the value kept in the Worker Node Registry."""

    id: str
    host: str
    address: str  # where this host's shards listen for infer.act
    cores: int
    threads: int  # that a shard here computes with
    memory: int  # bytes this forager may use for shards
    backends: tuple[str, ...]
    features: tuple[str, ...]  # of ggml's CPU backend: "AVX512", "LLAMAFILE", ...
    version: str
    pid: int
    started: float  # seconds since the epoch
    shards: tuple[ShardStatus, ...] = ()


class ShardStatus(msgspec.Struct, frozen=True):
    """One shard process as its forager sees it."""

    replica: str
    epoch: int
    shard: int
    pid: int
    state: Literal["loading", "loaded", "linked", "failed"]
    resident: int  # bytes of resident memory now
    planned: int  # bytes planned


# ---- queen -> forager: models and shards


class DescribeModel(Message, frozen=True, tag="describe-model"):
    """Find (or fetch) a model on this host and read its header. Reply: `ModelDescribed`."""

    model: str  # a catalog name, a path, or a URL


class ModelDescribed(Message, frozen=True, tag="model-described"):
    facts: ModelFacts


class PullProgress(Message, frozen=True, tag="pull-progress"):
    """A forager fetches a model that it was asked to describe; an event, a few times a second."""

    forager: str
    model: str
    done: int  # bytes
    total: int  # 0 while it is not known


class ShardLoad(Message, frozen=True, tag="shard-load"):
    """Start a shard process. Reply: `ShardListening`, as soon as its port is bound; weights load after."""

    replica: str
    epoch: int
    model: str
    fingerprint: str
    plan: Plan
    shard: int
    options: RunOptions


class ShardListening(Message, frozen=True, tag="shard-listening"):
    replica: str
    epoch: int
    shard: int
    address: str
    port: int
    pid: int


class Peer(msgspec.Struct, frozen=True):
    """Where one shard listens. `name` is what errors call it: "shard 1 on forager-b"."""

    shard: int
    name: str
    address: str
    port: int


class ShardLink(Message, frozen=True, tag="shard-link"):
    """Connect to the other shards. Reply: `Done` when asked; `ShardLinked` follows as an event."""

    replica: str
    epoch: int
    peers: tuple[Peer, ...]


class ShardStop(Message, frozen=True, tag="shard-stop"):
    """End a shard process. Done even when there is none."""

    replica: str
    epoch: int


# ---- shard -> forager -> queen: what happens to a shard


class ShardProgress(Message, frozen=True, tag="shard-progress"):
    """Weights read so far, at most ten times a second."""

    replica: str
    epoch: int
    shard: int
    done: int  # bytes
    total: int


class ShardLoaded(Message, frozen=True, tag="shard-loaded"):
    """Weights are in memory and the graphs' memory is reserved."""

    replica: str
    epoch: int
    shard: int
    memory: Memory  # as taken, to be held against the plan
    seconds: float


class ShardLinked(Message, frozen=True, tag="shard-linked"):
    replica: str
    epoch: int
    shard: int


class ReplicaProved(Message, frozen=True, tag="replica-proved"):
    """The lead has passed a real token through all shards."""

    replica: str
    epoch: int
    seconds: float


class LeadStats(msgspec.Struct, frozen=True):
    """What the lead counts of its tasks. The first five are as of now, the others since it was linked."""

    waiting: int  # tasks without a slot
    running: int  # tasks with one
    slots: int
    kv_rows: int  # held by running tasks
    kv_capacity: int  # rows of all slots together
    prompt_tokens: int  # of prompts begun, read or reused
    cached_tokens: int  # of these, reused
    tokens: int  # of answers
    decode_steps: int
    decode_rows: int  # over `decode_steps`, the mean batch


class ShardStats(Message, frozen=True, tag="shard-stats"):
    """Counters since the shard was linked; at most once a second, and only after something has changed."""

    replica: str
    epoch: int
    shard: int
    computed: float  # seconds in the engine
    waited: float  # seconds, inside steps, for peers
    bytes_sent: int
    bytes_received: int
    steps: int
    prompt_rows: int
    decode_rows: int  # with the few chunks of a single row
    lead: LeadStats | None = None  # the lead's alone


class ShardFailed(Message, frozen=True, tag="shard-failed"):
    """A shard process ended or can't go on. `lost_peer` names a peer when the fault is at its end."""

    replica: str
    epoch: int
    shard: int
    failure: Failure
    lost_peer: int | None = None  # that peer's shard index


ShardEvent = ShardProgress | ShardLoaded | ShardLinked | ReplicaProved | ShardStats | ShardFailed


# ---- tasks


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
    """A function that the model may call. `parameters` is a JSON schema as text; empty: it takes none."""

    name: str
    description: str = ""
    parameters: str = ""


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
    task: str
    replica: str


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
    """What a task gives that generates nothing: a vector (float32, little endian), token ids, or a text."""

    task: str
    vector: bytes = b""
    tokens: tuple[int, ...] = ()
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


# ---- forager <-> shard process (stdin and stdout, one JSON object a line)


class ShardSpec(Message, frozen=True, tag="shard-spec"):
    """The first line a shard reads. The secret comes this way so that no process list shows it."""

    load: ShardLoad
    path: str  # the model file on this host
    name: str  # this shard's own name in peers' errors
    address: str  # to listen on
    secret: str
    threads: int
    cpus: tuple[int, ...] = ()  # to pin to; empty leaves it to the system


ShardCommand = ShardSpec | ShardLink | TaskAssign | TaskCancel | ShardStop
ShardOutput = ShardListening | ShardEvent | TaskEvent


# ---- operator -> queen


class LoadModel(Message, frozen=True, tag="load-model"):
    """Load a model, or with `reshard` change a loaded one's split. Reply: `ModelStatus`, loading."""

    model: str
    name: str = ""  # to serve it under; empty takes the catalog's or the file's
    split: int = 0  # shards; 0 lets the queen choose the fewest that fit
    mode: str = "auto"  # auto | tensor | pipeline | hybrid
    stages: int = 0  # of a hybrid
    shares: tuple[float, ...] = ()  # relative weights of the shards; empty takes the foragers' own
    options: RunOptions = RunOptions()
    reshard: bool = False
    replicas: int = 1  # on foragers of their own; a reshard keeps their number


class UnloadModel(Message, frozen=True, tag="unload-model"):
    model: str


class ListModels(Message, frozen=True, tag="list-models"):
    """Reply: `ModelList`."""


class ShardView(msgspec.Struct, frozen=True):
    """One shard as `antc ps` shows it."""

    shard: int
    forager: str
    part: str  # "layers 0-14, KV heads 0-1, ffn 0-767"
    state: str
    loaded: float  # 0..1
    planned: int
    resident: int


class ModelStatus(Message, frozen=True, tag="model-status"):
    """A model as the queen sees it. `state`: loading | ready | unavailable | failed | retired."""

    model: str
    source: str
    state: str
    mode: str
    replica: str
    epoch: int
    context: int
    slots: int
    shards: tuple[ShardView, ...]
    failure: Failure | None = None
    seconds: float = 0.0  # from request to ready
    created: float = 0.0  # seconds since the epoch
    trained: int = 0  # the context that the model was made for, once known
    room: int = 0  # tasks that all its replicas together run and queue, once known


class ModelList(Message, frozen=True, tag="model-list"):
    models: tuple[ModelStatus, ...]


class ListStats(Message, frozen=True, tag="list-stats"):
    """Reply: `ColonyStats`."""


class Histogram(msgspec.Struct, frozen=True):
    """How many values were at most `bounds[i]` and above the bound before it; the last count has no bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]  # one more than bounds
    sum: float  # of the values


class ModelStats(msgspec.Struct, frozen=True):
    """What the queen has counted of a model's tasks since she began. `state`: as in `ModelStatus`."""

    model: str
    state: str
    underway: int  # tasks that have not ended
    outcomes: dict[str, int]  # of those that have: "stop", "length", "cancelled", or a failure's reason
    prompt_tokens: int  # of accepted tasks
    cached_tokens: int  # of these, not read anew; of finished tasks
    tokens: int  # of answers
    first_token: Histogram  # seconds from a task's arrival
    next_token: Histogram  # seconds a token, from the first to the last; one value a finished task


class ColonyStats(Message, frozen=True, tag="colony-stats"):
    """Everything that is counted. Rates are differences of two, over the difference of their `time`."""

    time: float  # seconds on the queen's clock
    foragers: int  # alive
    models: tuple[ModelStats, ...]
    replicas: tuple[ModelStatus, ...]
    shards: tuple[ShardStats, ...]  # the last ones, of those replicas


# ---- the ops log


class OpsEvent(Message, frozen=True, tag="ops"):
    """One durable line of the ops log."""

    time: float  # seconds since the epoch
    kind: str  # "forager-joined", "forager-lost", "model-ready", "shard-missing", ...
    subject: str  # the forager or model it is about
    text: str
    reason: str = ""
