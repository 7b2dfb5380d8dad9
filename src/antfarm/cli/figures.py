"""What `antc top` shows, out of two or three looks at what the queen has counted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from antfarm.messages import ColonyStats, Histogram, LeadStats, ModelStats, ModelStatus, ShardStats, ShardView


class ModelFigures(msgspec.Struct, frozen=True):
    """A model now. What can't be known yet is None."""

    model: str
    state: str
    replicas: int
    ready: int  # of the replicas
    running: int  # answers with a slot
    queued: int
    tokens_per_second: float  # of answers
    prompt_tokens_per_second: float
    cached: float | None  # 0..1 of the prompts' tokens, not read anew
    first_token: float | None  # seconds, median
    next_token: float | None  # seconds a token, median
    batch: float | None  # answers in a step, mean


class ShardFigures(msgspec.Struct, frozen=True):
    """A shard now. Times are those of a mean step."""

    model: str
    replica: str
    shard: int
    forager: str
    state: str
    steps_per_second: float
    compute: float | None  # seconds
    wait: float | None  # seconds, for its peers
    sent_per_second: float  # bytes
    received_per_second: float
    kv: float | None  # 0..1 of the KV cache's rows in use
    resident: int
    planned: int


class Figures(msgspec.Struct, frozen=True):
    """The colony now; rates are over so many `seconds`."""

    seconds: float
    foragers: int
    models: tuple[ModelFigures, ...]
    shards: tuple[ShardFigures, ...]


def figures(before: ColonyStats, now: ColonyStats, long_before: ColonyStats) -> Figures:
    """Rates between `before` and `now`; medians since `long_before`, or where nothing ended, since ever."""
    seconds = max(now.time - before.time, 1e-9)
    return Figures(
        seconds,
        now.foragers,
        tuple(
            _model(model, _find(before, model), _find(long_before, model), now, before)
            for model in now.models
            if any(replica.model == model.model for replica in now.replicas)
        ),
        tuple(_shard(replica, view, now, before) for replica in now.replicas for view in replica.shards),
    )


def median(now: Histogram, before: Histogram | None) -> float | None:
    """Of the values that came after `before`, or of all when there are none; within its bucket a value may
    be anywhere. None without values."""
    counts = now.counts
    if before and now.counts != before.counts:
        counts = tuple(new - old for new, old in zip(now.counts, before.counts, strict=True))
    half = sum(counts) / 2
    if not half:
        return None
    reached = 0
    for count, (low, high) in zip(counts, pairwise((0.0, *now.bounds)), strict=False):
        if count and reached + count >= half:
            return low + (high - low) * (half - reached) / count
        reached += count
    return now.bounds[-1]


def _model(
    now: ModelStats,
    before: ModelStats | None,
    long_before: ModelStats | None,
    at: ColonyStats,
    then: ColonyStats,
) -> ModelFigures:
    seconds = max(at.time - then.time, 1e-9)
    replicas = [replica for replica in at.replicas if replica.model == now.model]
    leads = [lead for replica in replicas if (lead := _lead(at, replica))]
    earlier = [lead for replica in replicas if (lead := _lead(then, replica))]
    tokens = now.tokens - (before.tokens if before else 0)
    prompt = now.prompt_tokens - (before.prompt_tokens if before else 0)
    return ModelFigures(
        now.model,
        now.state,
        len(replicas),
        sum(replica.state == "ready" for replica in replicas),
        sum(lead.running for lead in leads),
        sum(lead.waiting for lead in leads),
        tokens / seconds,
        prompt / seconds,
        now.cached_tokens / now.prompt_tokens if now.prompt_tokens else None,
        median(now.first_token, long_before.first_token if long_before else None),
        median(now.next_token, long_before.next_token if long_before else None),
        _batch(leads, earlier),
    )


def _batch(now: Sequence[LeadStats], before: Sequence[LeadStats]) -> float | None:
    steps = sum(lead.decode_steps for lead in now) - sum(lead.decode_steps for lead in before)
    rows = sum(lead.decode_rows for lead in now) - sum(lead.decode_rows for lead in before)
    return rows / steps if steps > 0 else None


def _shard(replica: ModelStatus, view: ShardView, now: ColonyStats, before: ColonyStats) -> ShardFigures:
    seconds = max(now.time - before.time, 1e-9)
    nothing = ShardStats(replica.replica, replica.epoch, view.shard, 0.0, 0.0, 0, 0, 0, 0, 0)
    new = _told(now, replica, view.shard) or nothing
    old = _told(before, replica, view.shard) or nothing
    steps = new.steps - old.steps
    lead = _lead(now, replica)
    return ShardFigures(
        replica.model,
        replica.replica,
        view.shard,
        view.forager,
        view.state,
        steps / seconds,
        (new.computed - old.computed) / steps if steps else None,
        (new.waited - old.waited) / steps if steps else None,
        (new.bytes_sent - old.bytes_sent) / seconds,
        (new.bytes_received - old.bytes_received) / seconds,
        lead.kv_rows / lead.kv_capacity if lead and lead.kv_capacity else None,
        view.resident,
        view.planned,
    )


def _find(stats: ColonyStats, model: ModelStats) -> ModelStats | None:
    return next((one for one in stats.models if one.model == model.model), None)


def _told(stats: ColonyStats, replica: ModelStatus, shard: int) -> ShardStats | None:
    key = (replica.replica, replica.epoch, shard)
    return next((one for one in stats.shards if (one.replica, one.epoch, one.shard) == key), None)


def _lead(stats: ColonyStats, replica: ModelStatus) -> LeadStats | None:
    told = _told(stats, replica, 0)
    return told.lead if told else None
