"""`/metrics`: what the queen counts, in Prometheus's words. `docs/metrics.md` explains each name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import antfarm
from antfarm.messages import ColonyStats, Histogram, LeadStats, ModelStats, ModelStatus, ShardStats, ShardView

MODEL_STATES = ("loading", "ready", "unavailable")
SHARD_LABELS = ("model", "replica", "shard", "forager")

T = TypeVar("T")
Row = tuple[tuple[str, ...], T]  # label values, and what the figure is read from


class Metrics:
    """The page. It reads `stats` anew each time that it is asked for."""

    def __init__(self, stats: Callable[[], ColonyStats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Colony(stats))

    def page(self, accept: str) -> tuple[bytes, str]:
        """The body and its content type, in the newest form that the `Accept` header takes."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def router(stats: Callable[[], ColonyStats]) -> APIRouter:
    """The route of the page."""
    metrics = Metrics(stats)
    routes = APIRouter(tags=["metrics"])

    @routes.get("/metrics", response_class=PlainTextResponse, summary="What the queen counts, for Prometheus")
    async def page(request: Request) -> Response:
        body, content_type = metrics.page(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    return routes


@dataclass(frozen=True)
class Figure(Generic[T]):
    """One metric, and how its value is read."""

    name: str
    help: str
    value: Callable[[T], float]
    grows: bool = True  # a counter; else a gauge

    def family(self, labels: Sequence[str], rows: Iterable[Row[T]]) -> Metric:
        kind = CounterMetricFamily if self.grows else GaugeMetricFamily
        family = kind(self.name, self.help, labels=labels)
        for row, source in rows:
            family.add_metric(row, self.value(source))
        return family


MODEL: tuple[Figure[ModelStats], ...] = (
    Figure("antfarm_requests_underway", "Answers begun and not ended.", lambda m: m.underway, grows=False),
    Figure("antfarm_prompt_tokens", "Tokens of accepted prompts.", lambda m: m.prompt_tokens),
    Figure("antfarm_cached_prompt_tokens", "Of these, not read anew.", lambda m: m.cached_tokens),
    Figure("antfarm_answer_tokens", "Tokens generated.", lambda m: m.tokens),
)

LEAD: tuple[Figure[LeadStats], ...] = (
    Figure("antfarm_queue_length", "Answers that wait for a slot.", lambda s: s.waiting, grows=False),
    Figure("antfarm_slots", "Answers that can be underway at once.", lambda s: s.slots, grows=False),
    Figure("antfarm_slots_used", "Slots with an answer underway.", lambda s: s.running, grows=False),
    Figure("antfarm_kv_rows", "Rows of the KV cache that answers hold.", lambda s: s.kv_rows, grows=False),
    Figure("antfarm_kv_rows_capacity", "Rows of all slots.", lambda s: s.kv_capacity, grows=False),
    Figure("antfarm_decode_steps", "Steps that gave tokens of answers.", lambda s: s.decode_steps),
    Figure("antfarm_decode_rows", "Rows of those steps, one an answer.", lambda s: s.decode_rows),
)

VIEW: tuple[Figure[ShardView], ...] = (
    Figure("antfarm_shard_resident_bytes", "Resident memory.", lambda v: v.resident, grows=False),
    Figure("antfarm_shard_planned_bytes", "Memory planned for it.", lambda v: v.planned, grows=False),
)

SHARD: tuple[Figure[ShardStats], ...] = (
    Figure("antfarm_shard_steps", "Steps computed.", lambda s: s.steps),
    Figure("antfarm_shard_compute_seconds", "Time in the engine.", lambda s: s.computed),
    Figure("antfarm_shard_wait_seconds", "Time inside steps, for peers.", lambda s: s.waited),
    Figure("antfarm_shard_sent_bytes", "Sent to peers.", lambda s: s.bytes_sent),
    Figure("antfarm_shard_received_bytes", "Received from peers.", lambda s: s.bytes_received),
    Figure("antfarm_shard_prompt_rows", "Prompt tokens computed.", lambda s: s.prompt_rows),
    Figure("antfarm_shard_decode_rows", "Answer tokens computed.", lambda s: s.decode_rows),
)


class _Colony(Collector):
    """Makes all families from one look at the queen."""

    def __init__(self, stats: Callable[[], ColonyStats]) -> None:
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Nothing to check names against: this is the registry's only collector."""
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        version = GaugeMetricFamily("antfarm_build_info", "1, with the queen's version.", labels=["version"])
        version.add_metric([antfarm.__version__], 1)
        yield version
        yield GaugeMetricFamily("antfarm_foragers", "Foragers alive.", value=stats.foragers)
        yield from _models(stats.models)
        yield from _replicas(stats)


def _models(models: Sequence[ModelStats]) -> Iterator[Metric]:
    states = GaugeMetricFamily("antfarm_models", "Models by state.", labels=["state"])
    for state in MODEL_STATES:
        states.add_metric([state], sum(model.state == state for model in models))
    yield states
    ended = CounterMetricFamily(
        "antfarm_requests", "Answers that have ended, by how.", labels=["model", "outcome"]
    )
    for model in models:
        for outcome, count in model.outcomes.items():
            ended.add_metric([model.model, outcome], count)
    yield ended
    rows = [((model.model,), model) for model in models]
    for figure in MODEL:
        yield figure.family(["model"], rows)
    first = HistogramMetricFamily(
        "antfarm_time_to_first_token_seconds", "From a request to its first token.", labels=["model"]
    )
    following = HistogramMetricFamily(
        "antfarm_time_per_output_token_seconds", "Per token after the first.", labels=["model"]
    )
    for model in models:
        first.add_metric([model.model], *_buckets(model.first_token))
        following.add_metric([model.model], *_buckets(model.next_token))
    yield first
    yield following


def _replicas(stats: ColonyStats) -> Iterator[Metric]:
    ready = Figure[ModelStatus](
        "antfarm_replica_ready", "1 while it takes requests.", lambda r: r.state == "ready", grows=False
    )
    yield ready.family(["model", "replica"], [((r.model, r.replica), r) for r in stats.replicas])
    told = {(one.replica, one.shard): one for one in stats.shards}
    leads = [
        ((replica.model, replica.replica), one.lead)
        for replica in stats.replicas
        if (one := told.get((replica.replica, 0))) and one.lead
    ]
    for lead in LEAD:
        yield lead.family(["model", "replica"], leads)
    shards = [
        ((replica.model, replica.replica, str(view.shard), view.forager), view)
        for replica in stats.replicas
        for view in replica.shards
    ]
    for planned in VIEW:
        yield planned.family(SHARD_LABELS, shards)
    reported = [(row, one) for row, view in shards if (one := told.get((row[1], view.shard)))]
    for shard in SHARD:
        yield shard.family(SHARD_LABELS, reported)


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """As Prometheus has them: each bucket counts all below its bound as well."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.sum
