"""How a replica gets ready: what its shards report, and the table of what it takes to move on. And how it
is seen that a shard of it is gone."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from antfarm.colony.events import Describe, Instruction, Keep, LogOps, SendLink, SendLoad
from antfarm.colony.state import Limits, Phase, Replica
from antfarm.messages import ForagerFacts, ReplicaProved, ShardLinked, ShardLoaded, ShardProgress

MISSED_HEARTBEATS = 2  # that do not list a running shard, before it counts as gone


class Step(msgspec.Struct, frozen=True):
    """When `done` holds, the replica enters `phase`, which may take `seconds`, by `begin`."""

    done: Callable[[Replica], bool]
    phase: Phase
    seconds: Callable[[Limits], float]
    begin: Callable[[Replica], list[Instruction]]


def _load(replica: Replica) -> list[Instruction]:
    return [SendLoad(shard.forager, replica.load(index)) for index, shard in enumerate(replica.shards)]


def _link(replica: Replica) -> list[Instruction]:
    link = replica.link()
    return [SendLink(shard.forager, index, link) for index, shard in enumerate(replica.shards)]


def _announce(replica: Replica) -> list[Instruction]:
    assert replica.placement and replica.facts
    text = f"{replica.name} epoch {replica.epoch} on {', '.join(replica.foragers())}"
    context, trained = replica.placement.options.context, replica.facts.context
    if context > trained:
        text += f"; its context of {context} tokens is more than it was trained for: {trained}"
    return [LogOps("model-ready", replica.model, text)]


ADVANCE = {
    Phase.FETCHING: Step(
        lambda r: all(shard.described for shard in r.shards), Phase.LOADING, lambda limits: limits.load, _load
    ),
    Phase.LOADING: Step(
        lambda r: all(shard.listening and shard.loaded for shard in r.shards),
        Phase.LINKING,
        lambda limits: limits.link,
        _link,
    ),
    Phase.LINKING: Step(
        lambda r: all(shard.linked for shard in r.shards),
        Phase.PROVING,
        lambda limits: limits.prove,
        lambda _: [],
    ),
    Phase.PROVING: Step(lambda r: r.proved, Phase.READY, lambda _: 0.0, _announce),
}


def fetch(replica: Replica, limits: Limits, now: float) -> list[Instruction]:
    """Have every planned forager that did not describe the model do so: it fetches the file, and
    its fingerprint must agree."""
    replica.phase = Phase.FETCHING
    replica.deadline = now + limits.fetch
    asks: list[Instruction] = [
        Describe(*replica.key, shard.forager, replica.ask.model)
        for shard in replica.shards
        if not shard.described
    ]
    return asks or advance(replica, limits, now)


def advance(replica: Replica, limits: Limits, now: float) -> list[Instruction]:
    """Move on as far as what is known allows."""
    out: list[Instruction] = []
    while (step := ADVANCE.get(replica.phase)) and step.done(replica):
        replica.phase = step.phase
        replica.deadline = now + step.seconds(limits)
        if step.phase is Phase.READY:
            replica.ready = now
        out += step.begin(replica)
    return out


def hear(
    replica: Replica,
    told: ShardProgress | ShardLoaded | ShardLinked | ReplicaProved,
    limits: Limits,
    now: float,
) -> None:
    """Note what a shard reports. A load that makes progress gets more time."""
    if isinstance(told, ReplicaProved):
        replica.proved = True
        return
    if told.shard >= len(replica.shards):
        return
    shard = replica.shards[told.shard]
    if isinstance(told, ShardProgress):
        shard.done = told.done / told.total if told.total else 1.0
        if replica.phase is Phase.LOADING:
            replica.deadline = now + limits.load
    elif isinstance(told, ShardLoaded):
        shard.loaded, shard.done = True, 1.0
    else:
        shard.linked = True


def keep(failed: Replica) -> list[Instruction]:
    """A replica that was to take another's place fails: when the other drains yet, it serves on."""
    current = failed.seat.current
    if failed.phase is not Phase.WAITING or current is None or current.phase is not Phase.DRAINING:
        return []
    current.phase = Phase.READY
    return [Keep(*current.key)]


def gone(replica: Replica, facts: ForagerFacts) -> list[int]:
    """Hold a heartbeat against the replica's shards on that forager: which of them are no more?"""
    listed = {(s.replica, s.epoch, s.shard): s for s in facts.shards}
    for index, shard in enumerate(replica.shards):
        if shard.forager == facts.id:
            found = listed.get((*replica.key, index))
            shard.resident = found.resident if found else 0
            shard.missed = shard.missed + 1 if shard.loaded and not found else 0
    return [index for index, shard in enumerate(replica.shards) if shard.missed >= MISSED_HEARTBEATS]
