"""Performs the colony's instructions over the bus, and reports what came of them as events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from antfarm.bus import Bus, OpsLog
from antfarm.bus.subjects import FORAGER_DESCRIBE, FORAGER_LINK, FORAGER_LOAD, FORAGER_STOP
from antfarm.colony.events import (
    Broke,
    Describe,
    Described,
    DescribeFailed,
    Drain,
    Drained,
    Event,
    FailTasks,
    Instruction,
    Keep,
    LogOps,
    RequestFailed,
    SendLink,
    SendLoad,
    SendStop,
    ShardBound,
)
from antfarm.config import LINK_S, STOP_S
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import DescribeModel, Failure, OpsEvent, ShardStop
from antfarm.queen.tasks import Tasks

log = logging.getLogger(__name__)

FETCH_S = 3600.0  # for a forager to download a model
OPS_BACKLOG = 1000  # operator events that wait for a bus that is away
RETRY_S = 1.0


class Performer:
    """Each instruction runs as a task of its own, ops entries in order; `happened` gets the outcomes."""

    def __init__(self, bus: Bus, ops: OpsLog, tasks: Tasks, happened: Callable[[Event], object]) -> None:
        self._bus = bus
        self._ops = ops
        self._tasks = tasks
        self._happened = happened
        self._jobs: set[asyncio.Task[None]] = set()
        self._drains: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._entries: asyncio.Queue[OpsEvent] = asyncio.Queue(OPS_BACKLOG)
        self._scribe = asyncio.create_task(self._write())

    def begin(self, wanted: Instruction) -> asyncio.Task[None] | None:
        """Start on an instruction; None when it is done already."""
        if isinstance(wanted, FailTasks):
            self._tasks.fail(wanted.replica, wanted.epoch, wanted.failure)
            return None
        if isinstance(wanted, LogOps):
            self._note(wanted)
            return None
        if isinstance(wanted, Keep):
            if drain := self._drains.pop((wanted.replica, wanted.epoch), None):
                drain.cancel()
            return None
        job = asyncio.create_task(self._perform(wanted))
        self._jobs.add(job)
        job.add_done_callback(self._done)
        if isinstance(wanted, Drain):
            self._drains[wanted.replica, wanted.epoch] = job
        return job

    def _done(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        self._drains = {key: drain for key, drain in self._drains.items() if drain is not job}

    async def close(self) -> None:
        """Write down what there is to write, and drop everything else."""
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        if self._bus.connected:
            try:
                await asyncio.wait_for(self._entries.join(), RETRY_S)
            except TimeoutError:
                log.error("%d ops entries were not written", self._entries.qsize())
        self._scribe.cancel()
        await asyncio.gather(self._scribe, return_exceptions=True)

    async def _perform(self, wanted: Describe | SendLoad | SendLink | SendStop | Drain) -> None:
        try:
            await self._carry_out(wanted)
        except Exception as error:  # the core waits for an outcome
            log.exception("an instruction failed: %s", wanted)
            self._happened(Broke(*_replica(wanted), unforeseen(error)))

    async def _carry_out(self, wanted: Describe | SendLoad | SendLink | SendStop | Drain) -> None:
        if isinstance(wanted, Describe):
            self._happened(await self._describe(wanted))
        elif isinstance(wanted, SendLoad):
            self._happened(await self._load(wanted))
        elif isinstance(wanted, SendLink):
            await self._link(wanted)
        elif isinstance(wanted, SendStop):
            await self._stop(wanted)
        else:
            await self._tasks.drain(wanted.replica, wanted.epoch)
            self._happened(Drained(wanted.replica, wanted.epoch))

    async def _describe(self, wanted: Describe) -> Event:
        subject = FORAGER_DESCRIBE.of(wanted.forager)
        try:
            answer = await self._bus.request(subject, DescribeModel(wanted.model), FETCH_S)
        except AntfarmError as error:
            return DescribeFailed(wanted.replica, wanted.epoch, wanted.forager, Failure.of(error))
        return Described(wanted.replica, wanted.epoch, wanted.forager, answer.facts)

    async def _load(self, wanted: SendLoad) -> Event:
        load = wanted.load
        try:
            # longer than the forager's own limit, so that its answer comes first
            answer = await self._bus.request(FORAGER_LOAD.of(wanted.forager), load, LINK_S + 2 * STOP_S)
        except AntfarmError as error:
            return RequestFailed(load.replica, load.epoch, load.shard, Failure.of(error))
        return ShardBound(answer)

    async def _link(self, wanted: SendLink) -> None:
        try:
            await self._bus.request(FORAGER_LINK.of(wanted.forager), wanted.link)
        except AntfarmError as error:
            link = wanted.link
            self._happened(RequestFailed(link.replica, link.epoch, wanted.shard, Failure.of(error)))

    async def _stop(self, wanted: SendStop) -> None:
        try:
            stop = ShardStop(wanted.replica, wanted.epoch)
            await self._bus.request(FORAGER_STOP.of(wanted.forager), stop, 2 * STOP_S)
        except AntfarmError as error:
            level = logging.DEBUG if error.reason is Reason.FORAGER_LOST else logging.WARNING
            log.log(
                level,
                "%s epoch %d was not stopped on %s: %s",
                wanted.replica,
                wanted.epoch,
                wanted.forager,
                error,
            )

    # ---- the ops log

    def _note(self, wanted: LogOps) -> None:
        log.info("%s: %s: %s", wanted.kind, wanted.subject, wanted.text)
        event = OpsEvent(time.time(), wanted.kind, wanted.subject, wanted.text, wanted.reason)
        try:
            self._entries.put_nowait(event)
        except asyncio.QueueFull:
            log.error("the ops log does not take entries; lost: %s", event)

    async def _write(self) -> None:
        while True:
            event = await self._entries.get()
            try:
                await self._append(event)
            finally:
                self._entries.task_done()

    async def _append(self, event: OpsEvent) -> None:
        """Store one entry; again, for as long as the bus is away."""
        while True:
            try:
                await self._ops.append(event)
                return
            except AntfarmError as error:
                if error.reason is not Reason.BUS_UNREACHABLE:
                    log.error("an ops entry was lost: %s: %s", error, event)
                    return
            await asyncio.sleep(RETRY_S)


def unforeseen(error: Exception) -> Failure:
    """What is told of an exception that nobody foresaw."""
    return Failure(Reason.INTERNAL, f"{type(error).__name__}: {error}", "see the queen's log")


def _replica(wanted: Describe | SendLoad | SendLink | SendStop | Drain) -> tuple[str, int]:
    if isinstance(wanted, SendLoad):
        return wanted.load.replica, wanted.load.epoch
    if isinstance(wanted, SendLink):
        return wanted.link.replica, wanted.link.epoch
    return wanted.replica, wanted.epoch
