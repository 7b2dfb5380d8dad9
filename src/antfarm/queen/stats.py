"""What the queen counts: tasks as their events pass, shards as they report. `/metrics` and `antc top` both
show what is counted here."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from antfarm.errors import AntfarmError, Reason
from antfarm.messages import (
    ColonyStats,
    Histogram,
    ModelStats,
    ModelStatus,
    ShardStats,
    TaskAccepted,
    TaskEvent,
    TaskFinished,
    TaskTokens,
)

FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
NEXT_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
ENDED = ("unavailable", "failed", "retired")  # states of a replica
KEPT = 32  # models that are no longer loaded, but still counted
GONE = "retired"  # the state of a model that is counted, but no longer loaded

Events = AsyncGenerator[TaskEvent, None]


class Stats:
    """`clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._models: dict[str, _Model] = {}
        self._shards: dict[tuple[str, int], ShardStats] = {}  # by replica and shard: the newest epoch's last

    def hear(self, told: ShardStats) -> None:
        """A shard's counters."""
        key = (told.replica, told.shard)
        known = self._shards.get(key)
        if known is None or told.epoch >= known.epoch:
            self._shards[key] = told

    async def observed(self, model: str, events: Events) -> Events:
        """The same events, counted on their way. Closing it closes `events`."""
        counted = self._models.setdefault(model, _Model())
        watch = _Watch(counted, self._clock)
        counted.underway += 1
        outcome = ""
        try:
            async with aclosing(events):
                async for event in events:
                    watch.see(event)
                    if isinstance(event, TaskFinished):
                        outcome = event.failure.reason if event.failure else event.finish
                    yield event
        except AntfarmError as error:
            outcome = error.reason
            raise
        except (GeneratorExit, asyncio.CancelledError):
            outcome = outcome or "cancelled"
            raise
        finally:
            counted.underway -= 1
            counted.outcomes[outcome or Reason.INTERNAL] += 1

    def report(
        self, foragers: int, states: Mapping[str, str], replicas: Iterable[ModelStatus]
    ) -> ColonyStats:
        """Everything counted so far. `states` are those of the loaded models, `replicas` are theirs."""
        replicas = tuple(replicas)
        self._forget(states, {replica.replica for replica in replicas})
        names = dict.fromkeys([*states, *self._models])
        # What ended holds no slots, whatever its lead told last.
        shown = {(r.replica, r.epoch) for r in replicas if r.state not in ENDED}
        return ColonyStats(
            time=self._clock(),
            foragers=foragers,
            models=tuple(
                self._models.get(name, _Model()).report(name, states.get(name, GONE)) for name in names
            ),
            replicas=replicas,
            shards=tuple(one for one in self._shards.values() if (one.replica, one.epoch) in shown),
        )

    def _forget(self, loaded: Collection[str], replicas: Collection[str]) -> None:
        """Drop the shards of replicas that are no more, and the oldest of many models that are no more."""
        self._shards = {key: told for key, told in self._shards.items() if key[0] in replicas}
        gone = [name for name, model in self._models.items() if name not in loaded and not model.underway]
        for name in gone[:-KEPT]:
            del self._models[name]


class _Buckets:
    """A histogram that grows."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def report(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._sum)


@dataclass(eq=False)
class _Model:
    """A model's counters."""

    underway: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    first_token: _Buckets = field(default_factory=lambda: _Buckets(FIRST_TOKEN_S))
    next_token: _Buckets = field(default_factory=lambda: _Buckets(NEXT_TOKEN_S))

    def report(self, model: str, state: str) -> ModelStats:
        return ModelStats(
            model,
            state,
            self.underway,
            dict(self.outcomes),
            self.prompt_tokens,
            self.cached_tokens,
            self.tokens,
            self.first_token.report(),
            self.next_token.report(),
        )


class _Watch:
    """One task's clock."""

    def __init__(self, model: _Model, clock: Callable[[], float]) -> None:
        self._model = model
        self._clock = clock
        self._began = clock()
        self._first: tuple[float, int] | None = None  # when the first tokens came, and how many
        self._last = 0.0

    def see(self, event: TaskEvent) -> None:
        if isinstance(event, TaskAccepted):
            self._model.prompt_tokens += event.prompt_tokens
        elif isinstance(event, TaskTokens):
            self._tokens(event)
        elif isinstance(event, TaskFinished):
            self._finished(event)

    def _tokens(self, event: TaskTokens) -> None:
        self._last = self._clock()
        self._model.tokens += event.count
        if self._first is None:
            self._first = self._last, event.count
            self._model.first_token.add(self._last - self._began)

    def _finished(self, event: TaskFinished) -> None:
        if event.timings:
            self._model.cached_tokens += event.timings.cached_tokens
        if self._first and event.index > self._first[1]:
            began, count = self._first
            self._model.next_token.add((self._last - began) / (event.index - count))
