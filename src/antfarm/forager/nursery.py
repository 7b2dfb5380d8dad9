"""All shard processes of one forager, within its memory."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from antfarm.errors import AntfarmError, PlanError, Reason, StateError
from antfarm.forager.shard import Report, ShardProcess
from antfarm.messages import (
    ShardLink,
    ShardListening,
    ShardLoad,
    ShardSpec,
    ShardStatus,
    TaskAssign,
    TaskCancel,
)

Key = tuple[str, int, int]  # replica, epoch, shard


class Nursery:
    """Starts, reaches and ends shard processes. `budget` is bytes for all of them together."""

    def __init__(self, name: str, budget: int, logs: Path, report: Report) -> None:
        self._name = name
        self._budget = budget
        self._logs = logs
        self._report = report
        self._shards: dict[Key, ShardProcess] = {}
        self._burials: set[asyncio.Task[None]] = set()

    def statuses(self) -> tuple[ShardStatus, ...]:
        return tuple(shard.status() for shard in self._shards.values())

    async def load(self, load: ShardLoad, spec: ShardSpec) -> ShardListening:
        """Start a shard; returns once it listens.

        Raises PlanError `no-capacity` with numbers, StateError `model-loaded` or `shard-failed`.
        """
        key = (load.replica, load.epoch, load.shard)
        await self._make_room(load)
        if key in self._shards:
            raise StateError(
                Reason.MODEL_LOADED,
                f"shard {load.shard} of {load.replica} epoch {load.epoch} runs on {self._name} already",
            )
        path = self._logs / f"{self._name}-{load.replica}-shard{load.shard}.log"
        shard = self._shards[key] = ShardProcess(load, path, self._report)
        try:
            listening = await shard.start(spec)
        except BaseException:
            await self._end(key, shard)
            raise
        burial = asyncio.create_task(self._bury(key, shard))
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)
        return listening

    async def link(self, link: ShardLink) -> None:
        """Pass on to every shard of the replica. Raises StateError `shard-failed` when there is none."""
        for shard in self._of(link.replica, link.epoch):
            await shard.send(link)

    async def assign(self, task: TaskAssign) -> None:
        """Hand a task to the lead. Raises StateError `shard-missing` when it does not run here."""
        lead = self._shards.get((task.replica, task.epoch, 0))
        if lead is None or lead.stopping:
            raise self._missing(task.replica, task.epoch)
        await lead.send(task)

    async def cancel(self, cancel: TaskCancel) -> None:
        """Tell the lead, if it runs here."""
        if lead := self._shards.get((cancel.replica, cancel.epoch, 0)):
            with contextlib.suppress(StateError):  # its end ended the task
                await lead.send(cancel)

    async def stop(self, replica: str, epoch: int) -> None:
        """End the replica's shards here; returns when their memory is free."""
        ending = [(key, shard) for key, shard in self._shards.items() if key[:2] == (replica, epoch)]
        await asyncio.gather(*(self._end(key, shard) for key, shard in ending))

    async def close(self) -> None:
        """End all shards."""
        await asyncio.gather(*(self._end(key, shard) for key, shard in list(self._shards.items())))
        await asyncio.gather(*self._burials)

    async def _make_room(self, load: ShardLoad) -> None:
        """Wait for shards that are ending, then hold the plan against the budget."""
        needed = load.plan.memory[load.shard].total
        if needed > self._budget - self._taken():
            await asyncio.gather(*(shard.wait() for shard in self._shards.values() if shard.stopping))
        free = self._budget - self._taken()
        if needed > free:
            raise PlanError(
                Reason.NO_CAPACITY,
                f"shard {load.shard} of {load.replica} needs {needed >> 20} MiB; {self._name} has "
                f"{max(0, free) >> 20} of {self._budget >> 20} MiB free",
                hint="use more shards, unload another model, or give the forager more --memory",
                needed=needed,
                free=free,
            )

    def _taken(self) -> int:
        return sum(shard.planned for shard in self._shards.values() if not shard.ended)

    async def _end(self, key: Key, shard: ShardProcess) -> None:
        await shard.stop()
        if self._shards.get(key) is shard:
            del self._shards[key]

    async def _bury(self, key: Key, shard: ShardProcess) -> None:
        """Forget a shard that ended by itself."""
        await shard.wait()
        if self._shards.get(key) is shard:
            del self._shards[key]

    def _of(self, replica: str, epoch: int) -> list[ShardProcess]:
        found = [shard for key, shard in self._shards.items() if key[:2] == (replica, epoch)]
        if not found:
            raise self._missing(replica, epoch)
        return found

    def _missing(self, replica: str, epoch: int) -> AntfarmError:
        return StateError(
            Reason.SHARD_MISSING,
            f"{self._name} runs no such shard of {replica} epoch {epoch}",
            hint="`antc ps` shows where shards run",
        )
