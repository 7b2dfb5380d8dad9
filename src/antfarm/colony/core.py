"""The colony: events in, instructions out. No clock, no I/O: `now` comes with every event.

A forager that falls silent or leaves, a shard that fails, and a peer that a lead misses all end
the same way: the replica is stopped everywhere, so that its memory is free, and says why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
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
    Event,
    FailTasks,
    ForagerHeard,
    ForagerLeft,
    Instruction,
    LoadAsked,
    LogOps,
    RequestFailed,
    Route,
    SendStop,
    ShardBound,
    ShardHeard,
    Tick,
    UnloadAsked,
)
from antfarm.colony.names import Retired, forget_failed, offered
from antfarm.colony.placement import assign, renewed, split_request
from antfarm.colony.progress import advance, gone, hear, keep
from antfarm.colony.routing import choose
from antfarm.colony.state import Forager, Key, Limits, Model, Phase, Replica, Seat
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import Failure, ForagerFacts, LoadModel, ShardFailed, ShardStats

NAP_S = 2.0  # between two ticks: the queen herself was asleep, and heard nobody


class Colony:
    """The state, and `handle`, which changes it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._epoch = 0
        self._ticked: float | None = None
        self._foragers: dict[str, Forager] = {}
        self._models: dict[str, Model] = {}
        self._replicas: dict[Key, Replica] = {}  # those that have, or may have, processes
        self._retired = Retired()
        self._handlers: dict[type, Callable[[Any, float], list[Instruction]]] = {
            ForagerHeard: self._forager_heard,
            ForagerLeft: self._forager_left,
            LoadAsked: self._load_asked,
            UnloadAsked: self._unload_asked,
            Described: self._described,
            DescribeFailed: self._describe_failed,
            ShardBound: self._shard_bound,
            RequestFailed: self._request_failed,
            ShardHeard: self._shard_heard,
            Drained: self._drained,
            Broke: self._broke,
            Tick: self._tick,
        }

    # ---- questions

    def foragers(self) -> list[ForagerFacts]:
        """The live foragers, by id."""
        return [self._foragers[id].facts for id in sorted(self._foragers)]

    def models(self) -> list[Model]:
        """Every served name, in the order of loading."""
        return list(self._models.values())

    def route(
        self, name: str, tasks: Mapping[Key, int] = MappingProxyType({}), preferred: Key | None = None
    ) -> Route:
        """Where a task for this model goes, while `tasks` are underway on the replicas; to the `preferred`
        one if it can. Raises AntfarmError with the reason why nowhere."""
        model = self._models.get(name)
        if model is None or model.view is None:
            raise self.missing(name)
        ready = model.ready()
        if not ready:
            raise refusals.not_ready(model.view)
        replica = choose(ready, tasks, preferred)
        return Route(name, replica.name, replica.epoch, replica.shards[0].forager)

    def missing(self, name: str) -> AntfarmError:
        """Why there is no such model: `model-unknown` or `model-retired`."""
        return refusals.unknown(name, offered(self._models), retired=name in self._retired)

    # ---- events

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in an event. Only `LoadAsked` and `UnloadAsked` are ever refused, with an AntfarmError."""
        return self._handlers[type(event)](event, now)

    def _forager_heard(self, event: ForagerHeard, now: float) -> list[Instruction]:
        facts = event.facts
        known = self._foragers.get(facts.id)
        out: list[Instruction] = []
        if known and known.facts.started != facts.started:
            out += self._lose(facts.id, "it was restarted", now)
            known = None
        self._foragers[facts.id] = Forager(facts, now)
        if known is None:
            out.append(LogOps("forager-joined", facts.id, refusals.introduce(facts, self.foragers())))
        return out + self._reconcile(facts, now)

    def _forager_left(self, event: ForagerLeft, now: float) -> list[Instruction]:
        if event.forager not in self._foragers:
            return []
        return self._lose(event.forager, "it said goodbye", now)

    def _load_asked(self, event: LoadAsked, now: float) -> list[Instruction]:
        name, model = event.name, self._models.get(event.name)
        ask = renewed(event.ask, model, len(self._foragers)) if model else event.ask
        split_request(ask)  # refuses nonsense
        refusals.check_load(ask, name, model, offered(self._models), len(self._foragers))
        if ask.reshard and model:
            return self._reshard(model, ask, now)
        seats = tuple(Seat(f"{name}-{number + 1}") for number in range(ask.replicas))
        self._models.pop(name, None)  # so that the order is that of loading
        model = self._models[name] = Model(name, seats)
        self._retired.discard(name)
        self._epoch += 1
        first, *_ = [self._attempt(model, seat, ask, now) for seat in seats]
        return [LogOps("model-loading", name, f"{ask.model} was asked for"), self._describe(first)]

    def _unload_asked(self, event: UnloadAsked, now: float) -> list[Instruction]:
        model = self._models.get(event.model)
        if model is None:
            raise self.missing(event.model)
        del self._models[event.model]
        self._retired.add(event.model)
        out: list[Instruction] = []
        for replica in [r for r in self._replicas.values() if r.model == event.model]:
            out += self._stop(replica, refusals.retired(event.model))
        return [*out, LogOps("model-retired", event.model, "it was unloaded")]

    def _described(self, event: Described, now: float) -> list[Instruction]:
        replica = self._replicas.get((event.replica, event.epoch))
        if replica is None:
            return []
        if replica.phase is Phase.DESCRIBING:
            return self._place(self._undescribed(replica), event, now)
        assert replica.facts
        if event.facts.fingerprint != replica.facts.fingerprint:
            return self._fail(replica, refusals.mismatch(replica, event.forager, event.facts), now)
        for shard in replica.shards:
            shard.described |= shard.forager == event.forager
        return advance(replica, self._limits, now)

    def _describe_failed(self, event: DescribeFailed, now: float) -> list[Instruction]:
        replica = self._replicas.get((event.replica, event.epoch))
        if replica is None:
            return []
        if replica.phase is not Phase.DESCRIBING:
            return self._fail(replica, event.failure, now)
        if set(self._foragers) - replica.tried and event.failure.reason in _NOT_HERE:
            return [self._describe(replica)]
        return self._fail_all(self._undescribed(replica), event.failure, now)

    def _shard_bound(self, event: ShardBound, now: float) -> list[Instruction]:
        bound = event.listening
        replica = self._replicas.get((bound.replica, bound.epoch))
        if replica is None or bound.shard >= len(replica.shards):
            return []
        replica.shards[bound.shard].listening = bound
        return advance(replica, self._limits, now)

    def _request_failed(self, event: RequestFailed, now: float) -> list[Instruction]:
        replica = self._replicas.get((event.replica, event.epoch))
        if replica is None or replica.serving:  # the answer was lost, not the request
            return []
        return self._fail(replica, event.failure, now, shard=event.shard)

    def _shard_heard(self, event: ShardHeard, now: float) -> list[Instruction]:
        told = event.event
        if isinstance(told, ShardFailed):
            return self._shard_failed(told, now)
        replica = self._replicas.get((told.replica, told.epoch))
        if replica is None or isinstance(told, ShardStats):
            return []
        hear(replica, told, self._limits, now)
        out = advance(replica, self._limits, now)
        return out + self._promote(replica, now) if replica.phase is Phase.READY else out

    def _shard_failed(self, told: ShardFailed, now: float) -> list[Instruction]:
        replica = self._replicas.get((told.replica, told.epoch))
        if replica is None:
            return self._blame_anew(told)
        replica.blame = blame.accused(told)
        shard = told.shard if told.lost_peer is None else told.lost_peer
        return self._fail(replica, told.failure, now, shard=shard)

    def _blame_anew(self, told: ShardFailed) -> list[Instruction]:
        """A report of a replica that has ended already may name the shard that was at fault."""
        ended = [replica for model in self._models.values() for replica in model.replicas()]
        replica = next((one for one in ended if one.key == (told.replica, told.epoch)), None)
        found = blame.learn(replica, told) if replica else None
        if replica is None or found is None:
            return []
        replica.failure = refusals.ending(replica, found, told.failure)
        text = f"it was {replica.title(found)}: {told.failure.message}"
        return [LogOps("cause-found", replica.model, text, replica.failure.reason)]

    def _drained(self, event: Drained, now: float) -> list[Instruction]:
        replica = self._replicas.get((event.replica, event.epoch))
        if replica is None or replica.phase is not Phase.DRAINING:
            return []
        out = self._stop(replica, refusals.retired(replica.model))
        return out + self._resume(replica, now)

    def _broke(self, event: Broke, now: float) -> list[Instruction]:
        """What never happens has happened: a replica that is on its way fails, and its name is free."""
        replica = self._replicas.get((event.replica, event.epoch))
        if replica is None or replica.serving:
            return []
        return self._fail_all(self._undescribed(replica) or [replica], event.failure, now)

    def _tick(self, event: Tick, now: float) -> list[Instruction]:
        asleep = not event.listening or self._ticked is None or now - self._ticked > NAP_S
        self._ticked = now
        out: list[Instruction] = []
        for id, forager in list(self._foragers.items()):
            if asleep:
                forager.heard = now
            elif now - forager.heard > self._limits.lost:
                out += self._lose(id, f"not heard of for {self._limits.lost:g} s", now)
        for replica in list(self._replicas.values()):
            if not replica.serving and now > replica.deadline:
                out += self._fail(replica, refusals.overdue(replica), now)
        return out

    # ---- foragers

    def _lose(self, id: str, why: str, now: float) -> list[Instruction]:
        del self._foragers[id]
        out: list[Instruction] = [LogOps("forager-lost", id, why, Reason.FORAGER_LOST)]
        for replica in list(self._replicas.values()):
            failure = Failure(Reason.FORAGER_LOST, f"{id} is lost: {why}", "`antc nodes` shows who is there")
            if id in replica.foragers():
                out += self._fail(replica, failure, now, shard=replica.foragers().index(id))
            elif replica.phase is Phase.DESCRIBING and id in replica.tried:
                out += self._describe_failed(DescribeFailed(*replica.key, id, failure), now)
        return out

    def _reconcile(self, facts: ForagerFacts, now: float) -> list[Instruction]:
        """Hold a heartbeat's list of shards against ours: what an event that was lost would have told."""
        out: list[Instruction] = []
        for status in facts.shards:
            self._epoch = max(self._epoch, status.epoch)
            replica = self._replicas.get((status.replica, status.epoch))
            if replica is None or facts.id not in replica.foragers():
                out.append(SendStop(facts.id, status.replica, status.epoch))
        for replica in list(self._replicas.values()):
            for index in gone(replica, facts):
                out += self._fail(replica, refusals.vanished(facts.id), now, shard=index)
        return out

    # ---- replicas

    def _describe(self, replica: Replica) -> Describe:
        """Ask a forager that was not asked yet; the first by name."""
        forager = min(set(self._foragers) - replica.tried)
        replica.tried.add(forager)
        return Describe(*replica.key, forager, replica.ask.model)

    def _attempt(self, model: Model, seat: Seat, ask: LoadModel, now: float) -> Replica:
        """A new replica for the seat, beside the one that serves there, if any does."""
        deadline = now + self._limits.fetch
        replica = Replica(model.name, seat, self._epoch, ask, Phase.DESCRIBING, now, deadline)
        if seat.current and seat.current.phase is not Phase.READY:
            seat.current = None
        seat.attempt = replica
        self._replicas[replica.key] = replica
        return replica

    def _reshard(self, model: Model, ask: LoadModel, now: float) -> list[Instruction]:
        """A new split for one replica after the other, the lost ones first, so that the others serve."""
        old = model.view
        assert old
        model.reshard = msgspec.structs.replace(ask, model=old.ask.model, replicas=len(model.seats))
        model.unsplit = deque(sorted(model.seats, key=lambda seat: seat.current in model.ready()))
        return self._reshard_next(model, now)

    def _reshard_next(self, model: Model, now: float) -> list[Instruction]:
        if not model.unsplit or model.reshard is None:
            return []
        self._epoch += 1
        replica = self._attempt(model, model.unsplit.popleft(), model.reshard, now)
        text = f"{replica.ask.model} was asked for"
        return [LogOps("model-loading", model.name, text), self._describe(replica)]

    def _undescribed(self, first: Replica) -> list[Replica]:
        """The replicas that were asked for at once, while nobody has described the model."""
        together = (r for r in self._replicas.values() if (r.model, r.epoch) == (first.model, first.epoch))
        return [replica for replica in together if replica.phase is Phase.DESCRIBING]

    def _place(self, replicas: Sequence[Replica], described: Described, now: float) -> list[Instruction]:
        """Plan them beside everything that runs; else one in place of the replica that it replaces."""
        for replica in replicas:
            replica.facts = described.facts
        current = replicas[0].seat.current
        try:
            assign(replicas, self._replicas.values(), self.foragers(), described.forager)
        except AntfarmError as error:
            if current is None or error.reason is not Reason.NO_CAPACITY:
                return self._fail_all(replicas, Failure.of(error), now)
            others = [one for one in self._replicas.values() if one is not current]
            try:
                assign(replicas, others, self.foragers(), described.forager)
            except AntfarmError as refused:
                return self._fail_all(replicas, Failure.of(refused), now)
            replicas[0].phase = Phase.WAITING
            current.phase = Phase.DRAINING
            return [Drain(*current.key)]
        return [one for replica in replicas for one in self._fetch(replica, now)]

    def _fetch(self, replica: Replica, now: float) -> list[Instruction]:
        """Have every planned forager that did not describe the model do so: it fetches the file, and
        its fingerprint must agree."""
        replica.phase = Phase.FETCHING
        replica.deadline = now + self._limits.fetch
        asks: list[Instruction] = [
            Describe(*replica.key, shard.forager, replica.ask.model)
            for shard in replica.shards
            if not shard.described
        ]
        return asks or advance(replica, self._limits, now)

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

    def _resume(self, drained: Replica, now: float) -> list[Instruction]:
        """The replica that waited for this one's memory goes on."""
        seat = drained.seat
        if seat.current is drained:
            seat.current = None
        waiting = seat.attempt
        return self._fetch(waiting, now) if waiting and waiting.phase is Phase.WAITING else []

    def _stop(self, replica: Replica, failure: Failure) -> list[Instruction]:
        """Its processes end, its tasks fail, its memory is free."""
        del self._replicas[replica.key]
        serving, replica.phase = replica.serving, Phase.ENDED
        for shard in replica.shards:
            shard.end()
        out: list[Instruction] = [FailTasks(*replica.key, failure)] if serving else []
        return out + [SendStop(id, *replica.key) for id in replica.foragers() if id in self._foragers]

    def _fail(
        self, replica: Replica, failure: Failure, now: float, *, shard: int | None = None
    ) -> list[Instruction]:
        if replica.key not in self._replicas:
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


_NOT_HERE = (Reason.MODEL_UNKNOWN, Reason.FORAGER_LOST)
