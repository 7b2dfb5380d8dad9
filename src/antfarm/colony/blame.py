"""Which shard broke a replica. A shard that dies takes its neighbours with it, and their reports may come
first: a peer's word counts only until a shard's own end, or the accused's own loss, is known."""

from __future__ import annotations

from collections.abc import Iterable

from antfarm.colony import refusals
from antfarm.colony.events import Instruction, LogOps
from antfarm.colony.state import Blame, Replica
from antfarm.messages import ShardFailed


def accused(told: ShardFailed) -> Blame | None:
    """What a peer's word says; None when a shard reports its own fault, which is certain."""
    if told.lost_peer is None:
        return None
    return Blame(told.lost_peer, {told.shard: told.lost_peer})


def anew(known: Iterable[Replica], told: ShardFailed) -> list[Instruction]:
    """A report of a replica that has ended already, if it is one of those `known`, may name the shard that
    was at fault."""
    replica = next((one for one in known if one.key == (told.replica, told.epoch)), None)
    found = _learn(replica, told) if replica else None
    if replica is None or found is None:
        return []
    replica.failure = refusals.ending(replica, found, told.failure)
    text = f"it was {replica.title(found)}: {told.failure.message}"
    return [LogOps("cause-found", replica.model, text, replica.failure.reason)]


def _learn(replica: Replica, told: ShardFailed) -> int | None:
    """A report that came after the one that ended the replica. The shard that is at fault by what is known
    now, when that changes who is named."""
    blame = replica.blame
    if blame is None:
        return None
    before = blame.shard
    if told.lost_peer is None:
        replica.blame, found = None, told.shard
    else:
        blame.lost.setdefault(told.shard, told.lost_peer)
        found = blame.shard = _follow(blame)
    return found if found != before and found < len(replica.shards) else None


def _follow(blame: Blame) -> int:
    """From the shard named so far to the one that lost nobody. Where they name each other in a circle, the
    first word stands."""
    shard, seen = blame.shard, set[int]()
    while shard in blame.lost:
        if shard in seen:
            return blame.shard
        seen.add(shard)
        shard = blame.lost[shard]
    return shard
