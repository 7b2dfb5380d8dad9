"""Which foragers may take a model's shards; `split` chooses among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from antfarm.colony.state import Replica, Shard
from antfarm.errors import AntfarmError, PlanError, Reason, RequestError
from antfarm.messages import ForagerFacts, LoadModel
from antfarm.split import MODES, HostShare, Placement, SplitRequest, place
from antfarm.types import ModelFacts


def assign(
    replicas: Sequence[Replica],
    running: Collection[Replica],
    foragers: Sequence[ForagerFacts],
    described_by: str,
) -> None:
    """Give each of `replicas`, whose facts are known, a plan and shards beside those `running`; or none of
    them. Raises as `place_model` does."""
    try:
        for replica in replicas:
            placement = replica.placement = _beside(replica, running, foragers)
            replica.shards = tuple(
                Shard(forager, memory.total, described=forager == described_by)
                for forager, memory in zip(placement.hosts, placement.plan.memory, strict=True)
            )
    except AntfarmError:
        for replica in replicas:
            replica.placement, replica.shards = None, ()
        raise


def _beside(replica: Replica, running: Collection[Replica], foragers: Sequence[ForagerFacts]) -> Placement:
    """A forager takes one replica of a model only, so that no more than one is lost with it."""
    assert replica.facts
    taken: dict[str, list[int]] = {}
    apart: set[str] = set()
    for other in running:
        if other is replica:
            continue
        for shard in other.shards:
            taken.setdefault(shard.forager, []).append(shard.planned)
        if other.model == replica.model and other.seat is not replica.seat:
            apart.update(other.foragers())
    return place_model(replica.facts, replica.ask, foragers, taken, apart)


def place_model(
    facts: ModelFacts,
    ask: LoadModel,
    foragers: Sequence[ForagerFacts],
    taken: Mapping[str, Sequence[int]],
    apart: Collection[str] = (),
) -> Placement:
    """A plan over live foragers, each with one shard of it at most.

    `taken` is the planned bytes of each shard that a forager runs, by forager id; `apart` are foragers that
    hold other replicas of this model, and take none of it. Raises PlanError `no-capacity` or
    `split-impossible`.
    """
    able = [one for one in foragers if ask.options.backend in one.backends]
    if foragers and not able:
        known = sorted({backend for one in foragers for backend in one.backends})
        raise PlanError(
            Reason.NO_CAPACITY,
            f"no forager has the backend {ask.options.backend}",
            hint=f"there is: {', '.join(known)}",
        )
    hosts = [
        HostShare(
            one.id,
            max(0, one.memory - sum(taken.get(one.id, ()))),
            float(one.threads),
            len(taken.get(one.id, ())),
        )
        for one in able
        if one.id not in apart
    ]
    try:
        return place(facts, hosts, split_request(ask), ask.options)
    except PlanError as error:
        if apart:
            error.message += (
                f"; {', '.join(sorted(apart))} hold other replicas, and each takes its own foragers"
            )
        raise


def split_request(ask: LoadModel) -> SplitRequest:
    """What the planner is asked. Raises RequestError `invalid-request`."""
    if ask.mode not in MODES:
        raise _invalid(f"there is no split mode {ask.mode!r}", f"use one of {', '.join(MODES)}")
    if ask.split < 0 or ask.stages < 0 or any(share <= 0 for share in ask.shares):
        raise _invalid(
            "a split, its stages and its shares are positive numbers", "leave out what you don't need"
        )
    if ask.shares and ask.split and len(ask.shares) != ask.split:
        raise _invalid(f"{len(ask.shares)} shares for {ask.split} shards", "give one share a shard")
    return SplitRequest(ask.split or len(ask.shares), ask.mode, ask.stages, ask.shares)


def _invalid(message: str, hint: str) -> RequestError:
    return RequestError(Reason.INVALID_REQUEST, message, hint=hint)
