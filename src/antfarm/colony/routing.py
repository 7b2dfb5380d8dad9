"""Which of a model's replicas takes a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antfarm.colony.state import Key, Replica
from antfarm.errors import Reason, StateError
from antfarm.types import RunOptions


def choose(replicas: Sequence[Replica], tasks: Mapping[Key, int], preferred: Key | None = None) -> Replica:
    """The replica that is `preferred`, since it may hold a prompt's prefix, if it has a slot free or none has
    fewer tasks a slot; else the one with the fewest, the first of equals.

    `tasks` counts those underway, running or queued. Raises StateError `queue-full` when every queue is full.
    """
    able = [one for one in replicas if tasks.get(one.key, 0) < _room(one)]
    if not able:
        waiting = sum(tasks.get(one.key, 0) for one in replicas)
        raise StateError(
            Reason.QUEUE_FULL,
            f"{waiting} tasks are underway or wait for {replicas[0].model} already",
            hint="try again later",
            tasks=waiting,
        )

    def load(one: Replica) -> float:
        return tasks.get(one.key, 0) / _options(one).slots

    least = min(able, key=load)
    known = next((one for one in able if one.key == preferred), None)
    return known if known and (load(known) < 1 or load(known) <= load(least)) else least


def _room(replica: Replica) -> int:
    return _options(replica).slots + _options(replica).queue


def _options(replica: Replica) -> RunOptions:
    assert replica.placement
    return replica.placement.options
