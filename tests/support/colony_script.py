"""A colony without processes: the pure core on a clock that a test turns."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from antfarm.colony import views
from antfarm.colony.core import Colony
from antfarm.colony.events import (
    Describe,
    Described,
    Event,
    ForagerHeard,
    Instruction,
    LoadAsked,
    LogOps,
    SendLoad,
    ShardBound,
    ShardHeard,
    Tick,
)
from antfarm.colony.state import Limits
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import (
    Failure,
    ForagerFacts,
    LoadModel,
    ModelStatus,
    ReplicaProved,
    ShardLinked,
    ShardListening,
    ShardLoaded,
    ShardStatus,
)
from antfarm.types import Memory, ModelFacts

LIMITS = Limits(lost=4, fetch=100, load=50, link=20, prove=10)
MEMORY = Memory(1, 1, 1, 1)
BROKEN = Failure(Reason.SHARD_FAILED, "ended by signal SIGKILL")


class Script:
    """A colony on a clock that the test turns, with `steps` for what usually happens."""

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts
        self.colony = Colony(LIMITS)
        self.now = 1000.0

    def on(self, event: Event) -> list[Instruction]:
        return self.colony.handle(event, self.now)

    def told(self, *events: Event) -> list[Instruction]:
        return [instruction for event in events for instruction in self.on(event)]

    def after(self, seconds: float) -> list[Instruction]:
        """Time passes, a second at a time, with nothing heard."""
        out: list[Instruction] = []
        for _ in range(int(seconds)):
            self.now += 1
            out += self.on(Tick())
        return out

    def joins(self, *ids: str, mib: int = 1024, **changes: Any) -> None:
        for id in ids:
            self.on(ForagerHeard(forager(id, mib=mib, **changes)))

    def loads(self, name: str = "m", epoch: int = 1, **ask: Any) -> list[Instruction]:
        """Ask for a model and let everything go well up to the shards' links."""
        self.on(LoadAsked(name, LoadModel("file", **ask)))
        described = self.on(Described(f"{name}-1", epoch, "a", self.facts))
        return self.fetched(described)

    def fetched(self, asks: list[Instruction]) -> list[Instruction]:
        """Answer every `Describe`; returns the loads that follow."""
        out = [one for one in asks if not isinstance(one, Describe)]
        for ask in asks:
            if isinstance(ask, Describe):
                out += self.on(Described(ask.replica, ask.epoch, ask.forager, self.facts))
        return out

    def becomes_ready(self, loads: list[Instruction]) -> list[Instruction]:
        """Let these loads, of one replica or several, go well."""
        sent = [one.load for one in loads if isinstance(one, SendLoad)]
        self.told(*(bound(load.replica, load.epoch, load.shard) for load in sent))
        for load in sent:
            self.on(ShardHeard(ShardLoaded(load.replica, load.epoch, load.shard, MEMORY, 1.0)))
        self.told(*(ShardHeard(ShardLinked(load.replica, load.epoch, load.shard)) for load in sent))
        replicas = dict.fromkeys((load.replica, load.epoch) for load in sent)
        return self.told(*(ShardHeard(ReplicaProved(*replica, 0.1)) for replica in replicas))

    def ready(self, **ask: Any) -> None:
        self.becomes_ready(self.loads(**ask))
        assert self.status().state == "ready"

    def status(self, name: str = "m") -> ModelStatus:
        return next(views.status(m, 0) for m in self.colony.models() if m.name == name)

    def refusal(self, name: str = "m") -> AntfarmError:
        with pytest.raises(AntfarmError) as caught:
            self.colony.route(name)
        return caught.value


def forager(id: str, mib: int = 1024, started: float = 1.0, **changes: Any) -> ForagerFacts:
    made = ForagerFacts(
        id, f"host-{id}", "10.0.0.1", 4, 2, mib << 20, ("CPU",), (), "1", 7, started, f"machine-{id}", True
    )
    return msgspec.structs.replace(made, **changes)


def bound(replica: str, epoch: int, shard: int) -> ShardBound:
    return ShardBound(ShardListening(replica, epoch, shard, "10.0.0.1", 9000 + shard, 50 + shard))


def kinds(instructions: list[Instruction]) -> list[str]:
    return [one.kind if isinstance(one, LogOps) else type(one).__name__ for one in instructions]


def statuses(replica: str, epoch: int, shard: int = 0) -> tuple[ShardStatus, ...]:
    return (ShardStatus(replica, epoch, shard, 5, "linked", 1000, 2000),)
