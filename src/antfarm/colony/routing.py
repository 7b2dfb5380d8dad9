"""Which of a model's replicas takes a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antfarm.colony.state import Key, Replica
from antfarm.errors import Reason, StateError
from antfarm.types import RunOptions


def least_loaded(replicas: Sequence[Replica], tasks: Mapping[Key, int]) -> Replica:
    """The replica with the fewest tasks a slot; the first of equals, since it may hold a prompt's prefix.

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
    return min(able, key=lambda one: tasks.get(one.key, 0) / _options(one).slots)


def _room(replica: Replica) -> int:
    return _options(replica).slots + _options(replica).queue


def _options(replica: Replica) -> RunOptions:
    assert replica.placement
    return replica.placement.options
