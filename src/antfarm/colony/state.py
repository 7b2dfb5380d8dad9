"""What the colony knows: foragers, models, and the replicas that run or try to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from antfarm.messages import (
    Failure,
    ForagerFacts,
    LoadModel,
    Peer,
    ShardLink,
    ShardListening,
    ShardLoad,
)
from antfarm.split import Placement
from antfarm.types import ModelFacts

Key = tuple[str, int]  # a replica's name and epoch


@dataclass(frozen=True)
class Limits:
    """Seconds after which the colony stops waiting."""

    lost: float  # without a heartbeat
    fetch: float  # for a forager to have the model on its disk
    load: float  # without any progress
    link: float
    prove: float


@dataclass(eq=False)
class Forager:
    facts: ForagerFacts
    heard: float


class Phase(Enum):
    """A replica's life, in order. What it takes to move on is in `progress.ADVANCE`."""

    WAITING = "waiting"  # for the memory of the replica that it replaces
    DESCRIBING = "describing"  # one forager reads the model's header
    FETCHING = "fetching"  # the planned foragers do
    LOADING = "loading"
    LINKING = "linking"
    PROVING = "proving"
    READY = "ready"
    DRAINING = "draining"  # replaced; its last tasks finish
    ENDED = "ended"


@dataclass(eq=False)
class Shard:
    """One shard of a replica, as its forager's events tell it."""

    forager: str
    planned: int  # bytes
    described: bool = False
    listening: ShardListening | None = None
    loaded: bool = False
    linked: bool = False
    done: float = 0.0  # 0..1 of its weights
    resident: int = 0  # bytes, from heartbeats
    missed: int = 0  # heartbeats in a row that should have listed it
    ended: bool = False  # with its replica

    def end(self) -> None:
        """Whatever it was, it holds no memory any more."""
        self.ended, self.resident = True, 0

    @property
    def state(self) -> str:
        if self.ended:
            return "ended"
        if self.linked:
            return "linked"
        if self.loaded:
            return "loaded"
        return "loading" if self.listening else "waiting"


@dataclass(eq=False)
class Blame:
    """Which shard is at fault, by what its peers say: each names the one that it lost."""

    shard: int
    lost: dict[int, int] = field(default_factory=dict)  # who lost whom


@dataclass(eq=False)
class Replica:
    """One loading of a model: a plan, its shards, and how far they are."""

    model: str
    seat: Seat
    epoch: int
    ask: LoadModel
    phase: Phase
    asked: float
    deadline: float
    facts: ModelFacts | None = None
    placement: Placement | None = None
    shards: tuple[Shard, ...] = ()
    tried: list[str] = field(default_factory=list)  # foragers asked to describe it, one after the other
    silent: set[str] = field(default_factory=set)  # foragers that did not answer: no plan counts on them
    proved: bool = False
    ready: float | None = None  # when it became so
    failure: Failure | None = None
    blame: Blame | None = None  # since a peer's word ended it

    @property
    def name(self) -> str:
        return self.seat.name

    @property
    def key(self) -> Key:
        return (self.name, self.epoch)

    @property
    def serving(self) -> bool:
        return self.phase in (Phase.READY, Phase.DRAINING)

    def foragers(self) -> list[str]:
        return [shard.forager for shard in self.shards]

    def title(self, shard: int) -> str:
        """What errors call a shard."""
        return f"shard {shard} on {self.shards[shard].forager}"

    def load(self, shard: int) -> ShardLoad:
        assert self.placement and self.facts
        return ShardLoad(
            self.name,
            self.epoch,
            self.ask.model,
            self.facts.fingerprint,
            self.placement.plan,
            shard,
            self.placement.options,
        )

    def link(self) -> ShardLink:
        """The addresses of all shards; they must all listen."""
        bound = [shard.listening for shard in self.shards if shard.listening]
        return ShardLink(
            self.name, self.epoch, tuple(Peer(b.shard, self.title(b.shard), b.address, b.port) for b in bound)
        )


@dataclass(eq=False)
class Seat:
    """A place among a model's replicas, which several hold one after the other. `attempt` is on its way
    there: the first one, or a new split beside the current, which may have ended."""

    name: str  # of every replica here; epochs tell them apart
    current: Replica | None = None
    attempt: Replica | None = None

    @property
    def view(self) -> Replica | None:
        """The replica that says how the seat is: the one that serves, else the one that may, else the one
        that did, else the one that failed to."""
        if self.current and self.current.phase is Phase.READY:
            return self.current
        if self.attempt and self.attempt.phase is not Phase.ENDED:
            return self.attempt
        return self.current or self.attempt

    def replicas(self) -> list[Replica]:
        """The new split, on its way or failed to get there, and the current; not one that ended, while
        there may be another."""
        found = [replica for replica in (self.attempt, self.current) if replica]
        return found[:1] if [one.phase is Phase.ENDED for one in found] == [False, True] else found


@dataclass(eq=False)
class Model:
    """A served name. `unsplit` are the seats whose turn for the new split of `reshard` is yet to come."""

    name: str
    seats: tuple[Seat, ...]
    reshard: LoadModel | None = None
    unsplit: deque[Seat] = field(default_factory=deque)

    @property
    def view(self) -> Replica | None:
        """The replica that says how the model is: one that serves, else one that may, else a lost one."""
        return min(self.seated(), key=_hope, default=None)

    def seated(self) -> list[Replica]:
        """One replica of each seat: the one that says how it is."""
        return [seat.view for seat in self.seats if seat.view]

    def ready(self) -> list[Replica]:
        """The replicas that take tasks."""
        return [s.current for s in self.seats if s.current and s.current.phase is Phase.READY]

    def replicas(self) -> list[Replica]:
        """Of each seat the new split, on its way or failed to get there, and the replica that serves."""
        return [replica for seat in self.seats for replica in seat.replicas()]


def _hope(replica: Replica) -> int:
    return {Phase.READY: 0, Phase.ENDED: 2}.get(replica.phase, 1)


def state_of(replica: Replica) -> str:
    """A replica's state as operators and clients see it."""
    if replica.phase is Phase.READY:
        return "ready"
    if replica.phase is Phase.DRAINING:
        return "retired"
    if replica.phase is Phase.ENDED:
        return "failed" if replica.ready is None else "unavailable"
    return "loading"
