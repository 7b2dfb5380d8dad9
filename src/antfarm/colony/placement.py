"""Which foragers may take a model's shards; `split` chooses among them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec

from antfarm.colony.sharing import share
from antfarm.colony.state import Model, Replica, Shard, state_of
from antfarm.errors import AntfarmError, PlanError, Reason, RequestError
from antfarm.messages import ForagerFacts, LoadModel
from antfarm.split import MODES, HostShare, Placement, SplitRequest, place
from antfarm.types import ModelFacts, RunOptions


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
    return place_model(replica.facts, replica.ask, foragers, taken, apart, replica.silent)


def place_model(
    facts: ModelFacts,
    ask: LoadModel,
    foragers: Sequence[ForagerFacts],
    taken: Mapping[str, Sequence[int]],
    apart: Collection[str] = (),
    silent: Collection[str] = (),
) -> Placement:
    """A plan over live foragers, each with one shard of it at most.

    `taken` is the planned bytes of each shard that a forager runs, by forager id; `apart` are foragers that
    hold other replicas of this model, and take none of it, as do those that are `silent`. Raises PlanError
    `no-capacity` or `split-impossible`.
    """
    able = [one for one in foragers if ask.options.backend in one.backends]
    if foragers and not able:
        known = sorted({backend for one in foragers for backend in one.backends})
        raise PlanError(
            Reason.NO_CAPACITY,
            f"no forager has the backend {ask.options.backend}",
            hint=f"there is: {', '.join(known)}",
        )
    used = {one.id: sum(taken.get(one.id, ())) for one in foragers}
    hosts = [
        HostShare(
            one.id,
            max(0, share(one, foragers, used) - used[one.id]),
            float(one.threads),
            len(taken.get(one.id, ())),
        )
        for one in able
        if one.id not in apart and one.id not in silent
    ]
    try:
        return place(facts, hosts, split_request(ask), ask.options)
    except PlanError as error:
        if sharing := [one.id for one in able if share(one, foragers, used) < one.memory]:
            error.message += f"; {', '.join(sharing)} share their machine's memory"
        if silent:
            error.message += f"; there is no answer from {', '.join(sorted(silent))}"
        if apart:
            error.message += (
                f"; {', '.join(sorted(apart))} hold other replicas, and each takes its own foragers"
            )
        raise


def renewed(ask: LoadModel, model: Model, foragers: int) -> LoadModel:
    """`ask` for a model that was loaded before: what it leaves out is as it was, where the foragers that
    are there allow it. A load of another file, or of one that never was ready, is taken as it stands."""
    view = model.view
    if view is None:
        return ask
    before = view.ask
    if not ask.reshard and (state_of(view) != "unavailable" or before.model != ask.model):
        return ask
    kept: dict[str, Any] = {}
    if not ask.split and not ask.shares and (before.split or len(before.shares)) <= foragers:
        kept = {"split": before.split, "shares": before.shares}
        if ask.mode == "auto" and not ask.stages:
            kept |= {"mode": before.mode, "stages": before.stages}
    if ask.options == RunOptions():
        kept["options"] = before.options
    if not ask.reshard and ask.replicas == 1 and before.replicas <= foragers:
        kept["replicas"] = before.replicas
    return msgspec.structs.replace(ask, **kept)


def split_request(ask: LoadModel) -> SplitRequest:
    """What the planner is asked. Raises RequestError `invalid-request`."""
    if ask.mode not in MODES:
        raise _invalid(f"there is no split mode {ask.mode!r}", f"use one of {', '.join(MODES)}")
    if ask.split < 0 or ask.stages < 0 or any(share <= 0 for share in ask.shares):
        raise _invalid(
            "a split, its stages and its shares are positive numbers", "leave out what you don't need"
        )
    if not all(map(isfinite, ask.shares)):
        raise _invalid("shares are finite numbers", "give one for each shard, such as 2,1")
    if ask.stages and ask.mode not in ("auto", "hybrid"):
        raise _invalid(
            f"stages are a hybrid's: a {ask.mode} split has no say in them", "leave them out, or use hybrid"
        )
    if ask.stages == 1:
        raise _invalid("a hybrid has at least 2 stages", "one stage is a tensor split")
    if ask.shares and ask.split and len(ask.shares) != ask.split:
        raise _invalid(f"{len(ask.shares)} shares for {ask.split} shards", "give one share a shard")
    return SplitRequest(ask.split or len(ask.shares), ask.mode, ask.stages, ask.shares)


def _invalid(message: str, hint: str) -> RequestError:
    return RequestError(Reason.INVALID_REQUEST, message, hint=hint)
