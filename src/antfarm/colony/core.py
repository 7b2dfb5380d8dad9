"""The colony: events in, instructions out. No clock, no I/O: `now` comes with every event.

Here foragers come and go, operators ask for models, and tasks find a replica. What becomes of a replica is
in `replicas`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from antfarm.colony import refusals
from antfarm.colony.events import (
    Event,
    ForagerHeard,
    ForagerLeft,
    Instruction,
    LeadSilent,
    LoadAsked,
    LogOps,
    Route,
    Tick,
    UnloadAsked,
)
from antfarm.colony.names import Retired, failed, offered
from antfarm.colony.placement import renewed, split_request
from antfarm.colony.replicas import Handlers, Replicas
from antfarm.colony.routing import choose
from antfarm.colony.state import Forager, Key, Limits, Model, Seat
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import Failure, ForagerFacts

NAP_S = 2.0  # between two ticks: the queen herself was asleep, and heard nobody


class Colony:
    """The state, and `handle`, which changes it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._ticked: float | None = None
        self._deaf = math.inf  # when we last could not have heard anybody
        self._foragers: dict[str, Forager] = {}
        self._models: dict[str, Model] = {}
        self._retired = Retired()
        self._replicas = Replicas(limits, self._foragers, self._models)
        self._handlers: Handlers = {
            ForagerHeard: self._forager_heard,
            ForagerLeft: self._forager_left,
            LoadAsked: self._load_asked,
            UnloadAsked: self._unload_asked,
            LeadSilent: self._lead_silent,
            Tick: self._tick,
            **self._replicas.handlers,
        }

    # ---- questions

    def foragers(self) -> list[ForagerFacts]:
        """The live foragers, by id."""
        return [self._foragers[id].facts for id in sorted(self._foragers)]

    def models(self) -> list[Model]:
        """Every served name, in the order of loading."""
        return list(self._models.values())

    def loaded(self) -> list[Model]:
        """Those that stand for more than a load that failed, in the order of loading."""
        return [model for model in self.models() if not failed(model)]

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
        assert replica.placement
        chunk = replica.placement.options.chunk
        return Route(name, replica.name, replica.epoch, replica.shards[0].forager, chunk)

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
        return out + self._replicas.reconcile(facts, now)

    def _forager_left(self, event: ForagerLeft, now: float) -> list[Instruction]:
        if event.forager not in self._foragers:
            return []
        return self._lose(event.forager, "it said goodbye", now)

    def _lose(self, id: str, why: str, now: float) -> list[Instruction]:
        del self._foragers[id]
        failure = Failure(Reason.FORAGER_LOST, f"{id} is lost: {why}", "`antc nodes` shows who is there")
        lost = LogOps("forager-lost", id, why, Reason.FORAGER_LOST)
        return [lost, *self._replicas.lose(id, failure, now)]

    def _tick(self, event: Tick, now: float) -> list[Instruction]:
        asleep = not event.listening or self._napped(now)
        self._ticked = now
        if asleep:
            self._deaf = now
        out: list[Instruction] = []
        for id, forager in list(self._foragers.items()):
            if asleep:
                forager.heard = now
            elif now - forager.heard > self._limits.lost:
                out += self._lose(id, f"not heard of for {self._limits.lost:g} s", now)
        return out + self._replicas.expire(now)

    def _napped(self, now: float) -> bool:
        return self._ticked is None or now - self._ticked > NAP_S

    def _lead_silent(self, event: LeadSilent, now: float) -> list[Instruction]:
        """It is lost, unless what it said may have been lost on its way."""
        if self._napped(now) or now - event.silence <= self._deaf:
            return []
        return self._replicas.lose_lead((event.replica, event.epoch), event.failure, now)

    def _load_asked(self, event: LoadAsked, now: float) -> list[Instruction]:
        name, model = event.name, self._models.get(event.name)
        ask = renewed(event.ask, model, len(self._foragers)) if model else event.ask
        split_request(ask)  # refuses nonsense
        refusals.check_load(ask, name, model, offered(self._models), len(self._foragers))
        if ask.reshard and model:
            return self._replicas.reshard(model, ask, now)
        seats = tuple(Seat(f"{name}-{number + 1}") for number in range(ask.replicas))
        self._models.pop(name, None)  # so that the order is that of loading
        model = self._models[name] = Model(name, seats)
        self._retired.discard(name)
        return [
            LogOps("model-loading", name, f"{ask.model} was asked for"),
            self._replicas.begin(model, ask, now),
        ]

    def _unload_asked(self, event: UnloadAsked, now: float) -> list[Instruction]:
        model = self._models.get(event.model)
        if model is None:
            raise self.missing(event.model)
        del self._models[event.model]
        if failed(model):
            raise refusals.never_loaded(model.name)
        self._retired.add(event.model)
        ended = self._replicas.retire(event.model)
        return [*ended, LogOps("model-retired", event.model, "it was unloaded")]
