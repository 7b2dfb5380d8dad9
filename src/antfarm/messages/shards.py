"""A shard from its start to its end: what the queen asks of it, and the events that it reports."""

from __future__ import annotations

import msgspec

from antfarm.messages.base import Failure, Message
from antfarm.messages.stats import ShardStats
from antfarm.types import Memory, Plan, RunOptions


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


class ShardFailed(Message, frozen=True, tag="shard-failed"):
    """A shard process ended or can't go on. `lost_peer` names a peer when the fault is at its end."""

    replica: str
    epoch: int
    shard: int
    failure: Failure
    lost_peer: int | None = None  # that peer's shard index


ShardEvent = ShardProgress | ShardLoaded | ShardLinked | ReplicaProved | ShardStats | ShardFailed
