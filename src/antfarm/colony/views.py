"""The colony as operators see it."""

from __future__ import annotations

import msgspec

from antfarm.colony.state import Model, Replica, state_of
from antfarm.messages import ModelStatus, ShardView
from antfarm.split import part_text


def status(model: Model, epoch_offset: float) -> ModelStatus:
    """How the model is, by the replica that serves it or may. `epoch_offset` is added to the colony's
    clock to give seconds since the epoch."""
    replica = model.view
    assert replica
    status = replica_status(replica, epoch_offset)
    if replica.placement is None:
        return status
    options = replica.placement.options
    return msgspec.structs.replace(status, room=len(model.seats) * (options.slots + options.queue))


def replica_status(replica: Replica, epoch_offset: float) -> ModelStatus:
    placement = replica.placement
    options = placement.options if placement else replica.ask.options
    return ModelStatus(
        model=replica.model,
        source=replica.ask.model,
        state=state_of(replica),
        mode=placement.plan.mode if placement else replica.ask.mode,
        replica=replica.name,
        epoch=replica.epoch,
        context=options.context,
        slots=options.slots,
        shards=_shards(replica),
        failure=replica.failure,
        seconds=0.0 if replica.ready is None else replica.ready - replica.asked,
        created=replica.asked + epoch_offset,
        trained=replica.facts.context if replica.facts else 0,
    )


def _shards(replica: Replica) -> tuple[ShardView, ...]:
    if not replica.placement:
        return ()
    pairs = zip(replica.placement.plan.parts, replica.shards, strict=True)
    return tuple(
        ShardView(
            index, shard.forager, part_text(part), shard.state, shard.done, shard.planned, shard.resident
        )
        for index, (part, shard) in enumerate(pairs)
    )
