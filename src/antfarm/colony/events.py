"""What the colony is told, and what it wants done. The shell feeds the first and performs the second."""

from __future__ import annotations

import msgspec

from antfarm.messages import (
    Failure,
    ForagerFacts,
    LoadModel,
    ShardEvent,
    ShardLink,
    ShardListening,
    ShardLoad,
)
from antfarm.types import ModelFacts

# ---- events


class ForagerHeard(msgspec.Struct, frozen=True):
    """A heartbeat."""

    facts: ForagerFacts


class ForagerLeft(msgspec.Struct, frozen=True):
    """A forager said goodbye."""

    forager: str


class LoadAsked(msgspec.Struct, frozen=True):
    """`name` is what the model is to be served under."""

    name: str
    ask: LoadModel


class UnloadAsked(msgspec.Struct, frozen=True):
    model: str


class Described(msgspec.Struct, frozen=True):
    """A forager has the model and read its header."""

    replica: str
    epoch: int
    forager: str
    facts: ModelFacts


class DescribeFailed(msgspec.Struct, frozen=True):
    replica: str
    epoch: int
    forager: str
    failure: Failure


class ShardBound(msgspec.Struct, frozen=True):
    """A shard process has started and listens."""

    listening: ShardListening


class RequestFailed(msgspec.Struct, frozen=True):
    """A forager refused, or did not answer, a load or a link."""

    replica: str
    epoch: int
    shard: int
    failure: Failure


class ShardHeard(msgspec.Struct, frozen=True):
    event: ShardEvent


class Drained(msgspec.Struct, frozen=True):
    """No task runs on this replica any more."""

    replica: str
    epoch: int


class LeadSilent(msgspec.Struct, frozen=True):
    """A lead with tasks has said nothing for `silence` seconds, which is too long."""

    replica: str
    epoch: int
    silence: float
    failure: Failure


class Broke(msgspec.Struct, frozen=True):
    """An exception that nobody foresaw, in what was done for this replica."""

    replica: str
    epoch: int
    failure: Failure


class Tick(msgspec.Struct, frozen=True):
    """Time has passed. `listening` is False while the bus is away and nobody could have been heard."""

    listening: bool = True


Event = (
    ForagerHeard
    | ForagerLeft
    | LoadAsked
    | UnloadAsked
    | Described
    | DescribeFailed
    | ShardBound
    | RequestFailed
    | ShardHeard
    | Drained
    | LeadSilent
    | Broke
    | Tick
)


def replica_of(event: Event) -> tuple[str, int] | None:
    """Name and epoch of the replica that an event is about, if it is about one."""
    if isinstance(event, ShardBound):
        return event.listening.replica, event.listening.epoch
    if isinstance(event, ShardHeard):
        return event.event.replica, event.event.epoch
    if isinstance(event, Described | DescribeFailed | RequestFailed | Drained | LeadSilent | Broke):
        return event.replica, event.epoch
    return None


# ---- instructions


class Describe(msgspec.Struct, frozen=True):
    """Ask a forager for the model's facts; it fetches the model first when it must."""

    replica: str
    epoch: int
    forager: str
    model: str


class SendLoad(msgspec.Struct, frozen=True):
    forager: str
    load: ShardLoad


class SendLink(msgspec.Struct, frozen=True):
    """`shards` are those of the replica that this forager runs: one message reaches them all."""

    forager: str
    shard: int
    link: ShardLink


class SendStop(msgspec.Struct, frozen=True):
    forager: str
    replica: str
    epoch: int


class FailTasks(msgspec.Struct, frozen=True):
    replica: str
    epoch: int
    failure: Failure


class Drain(msgspec.Struct, frozen=True):
    """Let the replica's tasks finish, within a bound, and report `Drained`."""

    replica: str
    epoch: int


class Keep(msgspec.Struct, frozen=True):
    """Drain the replica no more: it serves on."""

    replica: str
    epoch: int


class LogOps(msgspec.Struct, frozen=True):
    kind: str
    subject: str
    text: str
    reason: str = ""


Instruction = Describe | SendLoad | SendLink | SendStop | FailTasks | Drain | Keep | LogOps


class Route(msgspec.Struct, frozen=True):
    """Where a model's tasks go: the lead's forager."""

    model: str
    replica: str
    epoch: int
    forager: str
    chunk: int  # prompt tokens that the lead reads at a time
