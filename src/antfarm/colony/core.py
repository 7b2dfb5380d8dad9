"""The colony: events in, instructions out. No clock, no I/O: `now` comes with every event.

A forager that falls silent or leaves, a shard that fails, and a peer that a lead misses all end
the same way: the replica is stopped everywhere, so that its memory is free, and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from antfarm.colony import refusals
from antfarm.colony.events import (
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
from antfarm.colony.placement import place_model, split_request
from antfarm.colony.progress import advance, hear
from antfarm.colony.state import Forager, Key, Limits, Model, Phase, Replica, Shard
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import Failure, ForagerFacts, ShardFailed
from antfarm.split import Placement
from antfarm.types import RunOptions

RETIRED_NAMES = 256  # remembered, to tell a retired model from one that never was
MISSED_HEARTBEATS = 2  # that do not list a running shard, before it counts as gone
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
        self._retired: dict[str, None] = {}  # names, oldest first
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
            Tick: self._tick,
        }

    # ---- questions

    def foragers(self) -> list[ForagerFacts]:
        """The live foragers, by id."""
        return [self._foragers[id].facts for id in sorted(self._foragers)]

    def models(self) -> list[Model]:
        """Every served name, in the order of loading."""
        return list(self._models.values())

    def route(self, name: str) -> Route:
        """Where a task for this model goes. Raises AntfarmError with the reason why nowhere."""
        model = self._models.get(name)
        replica = model.view if model else None
        if replica is None:
            raise refusals.unknown(name, sorted(self._models), retired=name in self._retired)
        if replica.phase is not Phase.READY:
            raise refusals.not_ready(replica)
        return Route(name, replica.name, replica.epoch, replica.shards[0].forager)

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
            out.append(LogOps("forager-joined", facts.id, refusals.introduce(facts)))
        return out + self._reconcile(facts, now)

    def _forager_left(self, event: ForagerLeft, now: float) -> list[Instruction]:
        if event.forager not in self._foragers:
            return []
        return self._lose(event.forager, "it said goodbye", now)

    def _load_asked(self, event: LoadAsked, now: float) -> list[Instruction]:
        ask, name = event.ask, event.name
        split_request(ask)  # refuses nonsense
        model = self._models.get(name)
        refusals.check_load(ask, name, model, sorted(self._models), bool(self._foragers))
        if ask.reshard and model and (old := model.view):
            options = old.ask.options if ask.options == RunOptions() else ask.options
            ask = msgspec.structs.replace(ask, model=old.ask.model, options=options)
        self._epoch += 1
        deadline = now + self._limits.fetch
        replica = Replica(name, self._epoch, ask, Phase.DESCRIBING, now, deadline, f"{name}-1")
        model = self._models.setdefault(name, Model(name))
        if model.current and model.current.phase is not Phase.READY:
            model.current = None
        model.attempt = replica
        self._replicas[replica.key] = replica
        self._retired.pop(name, None)
        return [LogOps("model-loading", name, f"{ask.model} was asked for"), self._describe(replica)]

    def _unload_asked(self, event: UnloadAsked, now: float) -> list[Instruction]:
        model = self._models.get(event.model)
        if model is None:
            raise refusals.unknown(event.model, sorted(self._models), retired=event.model in self._retired)
        del self._models[event.model]
        self._retired[event.model] = None
        while len(self._retired) > RETIRED_NAMES:
            del self._retired[next(iter(self._retired))]
        out: list[Instruction] = []
        for replica in [r for r in self._replicas.values() if r.model == event.model]:
            out += self._stop(replica, refusals.retired(event.model))
        return [*out, LogOps("model-retired", event.model, "it was unloaded")]

    def _described(self, event: Described, now: float) -> list[Instruction]:
        replica = self._replicas.get((event.replica, event.epoch))
        if replica is None:
            return []
        if replica.phase is Phase.DESCRIBING:
            replica.facts = event.facts
            return self._place(replica, event.forager, now)
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
        untried = set(self._foragers) - replica.tried
        if replica.phase is Phase.DESCRIBING and untried and event.failure.reason in _NOT_HERE:
            return [self._describe(replica)]
        return self._fail(replica, event.failure, now)

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
        replica = self._replicas.get((told.replica, told.epoch))
        if replica is None:
            return []
        if isinstance(told, ShardFailed):
            shard = told.shard if told.lost_peer is None else told.lost_peer
            return self._fail(replica, told.failure, now, shard=shard)
        hear(replica, told, self._limits, now)
        out = advance(replica, self._limits, now)
        return out + self._promote(replica) if replica.phase is Phase.READY else out

    def _drained(self, event: Drained, now: float) -> list[Instruction]:
        replica = self._replicas.get((event.replica, event.epoch))
        if replica is None or replica.phase is not Phase.DRAINING:
            return []
        out = self._stop(replica, refusals.retired(replica.model))
        return out + self._resume(replica, now)

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
        listed = {(s.replica, s.epoch, s.shard): s for s in facts.shards}
        for status in facts.shards:
            self._epoch = max(self._epoch, status.epoch)
            replica = self._replicas.get((status.replica, status.epoch))
            if replica is None or facts.id not in replica.foragers():
                out.append(SendStop(facts.id, status.replica, status.epoch))
        for replica in list(self._replicas.values()):
            for index, shard in enumerate(replica.shards):
                if shard.forager != facts.id:
                    continue
                found = listed.get((*replica.key, index))
                shard.resident = found.resident if found else 0
                shard.missed = shard.missed + 1 if shard.loaded and not found else 0
                if shard.missed >= MISSED_HEARTBEATS:
                    out += self._fail(replica, refusals.vanished(facts.id), now, shard=index)
        return out

    # ---- replicas

    def _describe(self, replica: Replica) -> Describe:
        """Ask a forager that was not asked yet; the first by name."""
        forager = min(set(self._foragers) - replica.tried)
        replica.tried.add(forager)
        return Describe(*replica.key, forager, replica.ask.model)

    def _place(self, replica: Replica, described_by: str, now: float) -> list[Instruction]:
        """Plan it beside everything that runs; else in place of the replica that it replaces."""
        current = self._models[replica.model].current
        try:
            placement = self._find_place(replica)
        except AntfarmError as error:
            if current is None or error.reason is not Reason.NO_CAPACITY:
                return self._fail(replica, Failure.of(error), now)
            try:
                placement = self._find_place(replica, without=current)
            except AntfarmError as refused:
                return self._fail(replica, Failure.of(refused), now)
            self._assign(replica, placement, described_by)
            replica.phase = Phase.WAITING
            current.phase = Phase.DRAINING
            return [Drain(*current.key)]
        self._assign(replica, placement, described_by)
        return self._fetch(replica, now)

    def _find_place(self, replica: Replica, without: Replica | None = None) -> Placement:
        assert replica.facts
        taken: dict[str, list[int]] = {}
        for other in self._replicas.values():
            if other not in (replica, without):
                for shard in other.shards:
                    taken.setdefault(shard.forager, []).append(shard.planned)
        return place_model(replica.facts, replica.ask, self.foragers(), taken)

    def _assign(self, replica: Replica, placement: Placement, described_by: str) -> None:
        replica.placement = placement
        replica.shards = tuple(
            Shard(forager, memory.total, described=forager == described_by)
            for forager, memory in zip(placement.hosts, placement.plan.memory, strict=True)
        )

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

    def _promote(self, replica: Replica) -> list[Instruction]:
        """A replica that has just become ready serves from now on."""
        model = self._models[replica.model]
        if model.current is replica:
            return []
        old, model.current, model.attempt = model.current, replica, None
        if old is None or old.phase is not Phase.READY:
            return []
        old.phase = Phase.DRAINING
        return [Drain(*old.key)]

    def _resume(self, drained: Replica, now: float) -> list[Instruction]:
        """The replica that waited for this one's memory goes on."""
        model = self._models.get(drained.model)
        if model is None:
            return []
        if model.current is drained:
            model.current = None
        waiting = model.attempt
        return self._fetch(waiting, now) if waiting and waiting.phase is Phase.WAITING else []

    def _stop(self, replica: Replica, failure: Failure) -> list[Instruction]:
        """Its processes end, its tasks fail, its memory is free."""
        del self._replicas[replica.key]
        serving, replica.phase = replica.serving, Phase.ENDED
        out: list[Instruction] = [FailTasks(*replica.key, failure)] if serving else []
        return out + [SendStop(id, *replica.key) for id in replica.foragers() if id in self._foragers]

    def _fail(
        self, replica: Replica, failure: Failure, now: float, *, shard: int | None = None
    ) -> list[Instruction]:
        if replica.key not in self._replicas:
            return []
        draining = replica.phase is Phase.DRAINING
        was_ready = replica.serving
        if shard is not None and shard >= len(replica.shards):
            shard = None
        replica.failure = refusals.missing(replica, shard, failure) if was_ready else failure
        out = self._stop(replica, refusals.broken(replica, shard, failure) if was_ready else failure)
        if draining:
            return out + self._resume(replica, now)
        kind = "shard-missing" if was_ready else "model-failed"
        return [*out, LogOps(kind, replica.model, replica.failure.message, replica.failure.reason)]


_NOT_HERE = (Reason.MODEL_UNKNOWN, Reason.FORAGER_LOST)
