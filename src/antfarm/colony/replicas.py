"""A replica's life: it is described, placed and fetched, loads, serves, and gives way or breaks.

A forager that falls silent or leaves, a shard that fails, and a peer that a lead misses all end
the same way: the replica is stopped everywhere, so that its memory is free, and says why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from antfarm.colony import blame, refusals
from antfarm.colony.events import (
    Broke,
    Describe,
    Described,
    DescribeFailed,
    Drain,
    Drained,
    FailTasks,
    Instruction,
    LogOps,
    RequestFailed,
    SendStop,
    ShardBound,
    ShardHeard,
)
from antfarm.colony.names import forget_failed
from antfarm.colony.placement import assign
from antfarm.colony.progress import advance, fetch, gone, hear, keep
from antfarm.colony.state import Forager, Key, Limits, Model, Phase, Replica, Seat
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import Failure, ForagerFacts, LoadModel, ShardFailed, ShardStats

_NOT_HERE = (Reason.MODEL_UNKNOWN, Reason.FORAGER_LOST)  # another forager may describe the model

Handlers = dict[type, Callable[[Any, float], list[Instruction]]]  # by the event's type


class Replicas:
    """Those that have, or may have, processes. `foragers` and `models` are the colony's, which keeps them;
    `handlers` take in the events about replicas."""

    def __init__(self, limits: Limits, foragers: Mapping[str, Forager], models: dict[str, Model]) -> None:
        self._limits = limits
        self._foragers = foragers
        self._models = models
        self._running: dict[Key, Replica] = {}
        self._epoch = 0
        self.handlers: Handlers = {
            Described: self._described,
            DescribeFailed: self._describe_failed,
            ShardBound: self._shard_bound,
            RequestFailed: self._request_failed,
            ShardHeard: self._shard_heard,
            Drained: self._drained,
            Broke: self._broke,
        }

    # ---- what the colony wants of them

    def begin(self, model: Model, ask: LoadModel, now: float) -> Describe:
        """A first replica for every seat; one question serves them all."""
        self._epoch += 1
        first, *_ = [self._attempt(model, seat, ask, now) for seat in model.seats]
        return self._describe(first)

    def reshard(self, model: Model, ask: LoadModel, now: float) -> list[Instruction]:
        """A new split for one replica after the other, the lost ones first, so that the others serve."""
        old = model.view
        assert old
        model.reshard = msgspec.structs.replace(ask, model=old.ask.model, replicas=len(model.seats))
        model.unsplit = deque(sorted(model.seats, key=lambda seat: seat.current in model.ready()))
        return self._reshard_next(model, now)

    def retire(self, model: str) -> list[Instruction]:
        """The model is unloaded."""
        out: list[Instruction] = []
        for replica in [r for r in self._running.values() if r.model == model]:
            out += self._stop(replica, refusals.retired(model))
        return out

    def lose(self, forager: str, failure: Failure, now: float) -> list[Instruction]:
        """A forager is gone, and its shards with it. The newest replicas end first: one that waits for the
        memory of another must not begin when that one ends."""
        out: list[Instruction] = []
        for replica in reversed(list(self._running.values())):
            if forager in replica.foragers():
                out += self._fail(replica, failure, now, shard=replica.foragers().index(forager))
            else:
                out += self._describe_failed(DescribeFailed(*replica.key, forager, failure), now)
        return out

    def lose_lead(self, key: Key, failure: Failure, now: float) -> list[Instruction]:
        """The lead of a replica hangs."""
        replica = self._running.get(key)
        return self._fail(replica, failure, now, shard=0) if replica else []

    def reconcile(self, facts: ForagerFacts, now: float) -> list[Instruction]:
        """Hold a heartbeat's list of shards against ours: what an event that was lost would have told."""
        out: list[Instruction] = []
        for status in facts.shards:
            self._epoch = max(self._epoch, status.epoch)
            replica = self._running.get((status.replica, status.epoch))
            if replica is None or facts.id not in replica.foragers():
                out.append(SendStop(facts.id, status.replica, status.epoch))
        for replica in list(self._running.values()):
            for index in gone(replica, facts):
                out += self._fail(replica, refusals.vanished(facts.id), now, shard=index)
        return out

    def expire(self, now: float) -> list[Instruction]:
        """End those that are still on their way after their time."""
        out: list[Instruction] = []
        for replica in list(self._running.values()):
            if not replica.serving and now > replica.deadline:
                out += self._fail(replica, refusals.overdue(replica), now)
        return out

    # ---- events

    def _described(self, event: Described, now: float) -> list[Instruction]:
        replica = self._running.get((event.replica, event.epoch))
        if replica is None:
            return []
        if replica.phase is Phase.DESCRIBING:
            return self._place(self._undescribed(replica), event, now)
        if not _awaits(replica, event.forager):
            return []
        assert replica.facts
        if event.facts.fingerprint != replica.facts.fingerprint:
            return self._fail(replica, refusals.mismatch(replica, event.forager, event.facts), now)
        for shard in replica.shards:
            shard.described |= shard.forager == event.forager
        return advance(replica, self._limits, now)

    def _describe_failed(self, event: DescribeFailed, now: float) -> list[Instruction]:
        replica = self._running.get((event.replica, event.epoch))
        if replica is None or not _awaits(replica, event.forager):
            return []
        if event.failure.reason == Reason.FORAGER_LOST:
            replica.silent.add(event.forager)
        if replica.phase is not Phase.DESCRIBING:
            return self._undelivered(replica, event, now)
        if set(self._foragers).difference(replica.tried) and event.failure.reason in _NOT_HERE:
            return [self._describe(replica)]
        return self._fail_all(self._undescribed(replica), event.failure, now)

    def _undelivered(self, replica: Replica, event: DescribeFailed, now: float) -> list[Instruction]:
        """A planned forager can't have the model. One that does not answer is planned without,
        and those of the new plan are asked."""
        if event.forager not in replica.silent:
            return self._fail(replica, event.failure, now)
        assert replica.facts
        return self._place([replica], Described(*replica.key, "", replica.facts), now)

    def _shard_bound(self, event: ShardBound, now: float) -> list[Instruction]:
        bound = event.listening
        replica = self._running.get((bound.replica, bound.epoch))
        if replica is None or bound.shard >= len(replica.shards):
            return []
        replica.shards[bound.shard].listening = bound
        return advance(replica, self._limits, now)

    def _request_failed(self, event: RequestFailed, now: float) -> list[Instruction]:
        replica = self._running.get((event.replica, event.epoch))
        if replica is None or replica.serving:  # the answer was lost, not the request
            return []
        return self._fail(replica, event.failure, now, shard=event.shard)

    def _shard_heard(self, event: ShardHeard, now: float) -> list[Instruction]:
        told = event.event
        if isinstance(told, ShardFailed):
            return self._shard_failed(told, now)
        replica = self._running.get((told.replica, told.epoch))
        if replica is None or isinstance(told, ShardStats):
            return []
        hear(replica, told, self._limits, now)
        out = advance(replica, self._limits, now)
        return out + self._promote(replica, now) if replica.phase is Phase.READY else out

    def _shard_failed(self, told: ShardFailed, now: float) -> list[Instruction]:
        replica = self._running.get((told.replica, told.epoch))
        if replica is None:
            known = [replica for model in self._models.values() for replica in model.replicas()]
            return blame.anew(known, told)
        replica.blame = blame.accused(told)
        shard = told.shard if told.lost_peer is None else told.lost_peer
        return self._fail(replica, told.failure, now, shard=shard)

    def _drained(self, event: Drained, now: float) -> list[Instruction]:
        replica = self._running.get((event.replica, event.epoch))
        if replica is None or replica.phase is not Phase.DRAINING:
            return []
        replica.failure = refusals.gave_way(replica)
        out = self._stop(replica, refusals.retired(replica.model))
        return out + self._resume(replica, now)

    def _broke(self, event: Broke, now: float) -> list[Instruction]:
        """What never happens has happened: a replica that is on its way fails, and its name is free."""
        replica = self._running.get((event.replica, event.epoch))
        if replica is None or replica.serving:
            return []
        return self._fail_all(self._undescribed(replica) or [replica], event.failure, now)

    # ---- on the way

    def _attempt(self, model: Model, seat: Seat, ask: LoadModel, now: float) -> Replica:
        """A new replica for the seat, beside the one that serves there, if any does."""
        deadline = now + self._limits.fetch
        replica = Replica(model.name, seat, self._epoch, ask, Phase.DESCRIBING, now, deadline)
        seat.attempt = replica
        self._running[replica.key] = replica
        return replica

    def _describe(self, replica: Replica) -> Describe:
        """Ask a forager that was not asked yet; the first by name."""
        forager = min(set(self._foragers).difference(replica.tried))
        replica.tried.append(forager)
        return Describe(*replica.key, forager, replica.ask.model)

    def _undescribed(self, first: Replica) -> list[Replica]:
        """The replicas that were asked for at once, while nobody has described the model."""
        together = (r for r in self._running.values() if (r.model, r.epoch) == (first.model, first.epoch))
        return [replica for replica in together if replica.phase is Phase.DESCRIBING]

    def _place(self, replicas: Sequence[Replica], described: Described, now: float) -> list[Instruction]:
        """Plan them beside everything that runs; else one in place of the replica that it replaces."""
        facts = msgspec.structs.replace(described.facts, name=replicas[0].model)  # what a refusal calls it
        for replica in replicas:
            replica.facts = facts
        live = [self._foragers[id].facts for id in sorted(self._foragers)]
        current = replicas[0].seat.current
        try:
            assign(replicas, self._running.values(), live, described.forager)
        except AntfarmError as error:
            if current is None or current.phase is not Phase.READY or error.reason is not Reason.NO_CAPACITY:
                return self._fail_all(replicas, Failure.of(error), now)
            others = [one for one in self._running.values() if one is not current]
            try:
                assign(replicas, others, live, described.forager)
            except AntfarmError as refused:
                return self._fail_all(replicas, Failure.of(refused), now)
            replicas[0].phase = Phase.WAITING
            current.phase = Phase.DRAINING
            return [Drain(*current.key)]
        return [one for replica in replicas for one in fetch(replica, self._limits, now)]

    def _promote(self, replica: Replica, now: float) -> list[Instruction]:
        """A replica that has just become ready serves from now on."""
        seat = replica.seat
        if seat.current is replica:
            return []
        old, seat.current, seat.attempt = seat.current, replica, None
        out: list[Instruction] = []
        if old and old.phase is Phase.READY:
            old.phase = Phase.DRAINING
            out.append(Drain(*old.key))
        return out + self._reshard_next(self._models[replica.model], now)

    def _reshard_next(self, model: Model, now: float) -> list[Instruction]:
        if not model.unsplit or model.reshard is None:
            return []
        self._epoch += 1
        replica = self._attempt(model, model.unsplit.popleft(), model.reshard, now)
        shards = replica.ask.split or len(replica.ask.shares) or "the fewest"
        text = f"{replica.name} in {shards} shards, {replica.ask.mode}, was asked for"
        return [LogOps("model-loading", model.name, text), self._describe(replica)]

    def _resume(self, drained: Replica, now: float) -> list[Instruction]:
        """The replica that waited for this one's memory goes on."""
        seat = drained.seat
        if seat.current is not drained:  # another took its place already, and who waits does so for that one
            return []
        waiting = seat.attempt
        return fetch(waiting, self._limits, now) if waiting and waiting.phase is Phase.WAITING else []

    # ---- the end

    def _stop(self, replica: Replica, failure: Failure) -> list[Instruction]:
        """Its processes end, its tasks fail, its memory is free."""
        del self._running[replica.key]
        serving, replica.phase = replica.serving, Phase.ENDED
        for shard in replica.shards:
            shard.end()
        out: list[Instruction] = [FailTasks(*replica.key, failure)] if serving else []
        return out + [SendStop(id, *replica.key) for id in replica.foragers() if id in self._foragers]

    def _fail(
        self, replica: Replica, failure: Failure, now: float, *, shard: int | None = None
    ) -> list[Instruction]:
        if replica.key not in self._running:
            return []
        draining = replica.phase is Phase.DRAINING
        kept = keep(replica)
        was_ready = replica.serving
        if shard is not None and shard >= len(replica.shards):
            shard = None
        replica.failure = refusals.ending(replica, shard, failure)
        out = self._stop(replica, refusals.broken(replica, shard, failure) if was_ready else failure)
        if draining:
            return out + self._resume(replica, now)
        kind = "shard-missing" if was_ready else "model-failed"
        model = self._models[replica.model]
        if not was_ready:
            model.unsplit.clear()
            forget_failed(self._models)
        text = refusals.told(replica, len(model.ready()))
        return [*out, *kept, LogOps(kind, replica.model, text, replica.failure.reason)]

    def _fail_all(self, replicas: Sequence[Replica], failure: Failure, now: float) -> list[Instruction]:
        return [one for replica in replicas for one in self._fail(replica, failure, now)]


def _awaits(replica: Replica, forager: str) -> bool:
    """Whether what it says of the model is still waited for: the answer of a forager that was lost may come
    long after another took its place."""
    if replica.phase is Phase.DESCRIBING:
        return replica.tried[-1:] == [forager]
    return replica.phase is Phase.FETCHING and any(
        shard.forager == forager and not shard.described for shard in replica.shards
    )
