"""What is counted: by shards of their work, by the queen of tasks, and both in one report."""

from __future__ import annotations

import msgspec

from antfarm.messages.base import Message
from antfarm.messages.operators import ModelStatus


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
