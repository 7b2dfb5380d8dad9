"""The forager: one host's part in a colony."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Self

import msgspec

from antfarm import __version__
from antfarm.bus import Bus, Registry
from antfarm.bus.subjects import (
    FORAGER_ASSIGN,
    FORAGER_CANCEL,
    FORAGER_DESCRIBE,
    FORAGER_LINK,
    FORAGER_LOAD,
    FORAGER_STOP,
    PULL_EVENTS,
    SHARD_EVENTS,
    TASK_EVENTS,
)
from antfarm.config import HEARTBEAT_S
from antfarm.errors import AntfarmError, BusError, Reason, StateError
from antfarm.forager.files import Files
from antfarm.forager.nursery import Nursery
from antfarm.forager.probe import Capabilities, probe
from antfarm.forager.settings import ForagerSettings, cores, machine
from antfarm.messages import (
    DescribeModel,
    Done,
    Failure,
    ForagerFacts,
    ModelDescribed,
    PullProgress,
    ShardEvent,
    ShardLink,
    ShardListening,
    ShardLoad,
    ShardSpec,
    ShardStop,
    TaskAccepted,
    TaskAssign,
    TaskCancel,
    TaskEvent,
    TaskFinished,
    TaskOutput,
    TaskTokens,
)

log = logging.getLogger(__name__)

PULL_TELLS_S = 0.25  # between two PullProgress events


class Forager:
    """A running forager; made with `Forager.start`, ended with `close`."""

    def __init__(self, settings: ForagerSettings, bus: Bus, registry: Registry, found: Capabilities) -> None:
        self.id = settings.id()
        self._settings = settings
        self._bus = bus
        self._registry = registry
        self._files = Files(settings.home.models, found.architectures)
        self._nursery = Nursery(self.id, settings.memory_budget(), settings.home.logs, self._report)
        self._facts = self._introduce(found)
        self._beating: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: ForagerSettings) -> Self:
        """Join the colony. Ready for requests when this returns.

        Raises BusError `bus-unreachable`, `bus-unauthorized` or `bus-full`; StateError
        `engine-unavailable`; AntfarmError `bad-setting` for a name that is taken, or for what this host
        can't do.
        """
        settings.check()
        id = settings.id()
        bus = await Bus.connect(settings.bus_url, settings.token(), id)
        try:
            await _check_unique(bus, id)
            forager = cls(settings, bus, await Registry.open(bus), await probe())
            await forager._serve()
            await forager._registry.put(forager._facts)
        except BaseException:
            await bus.close()
            raise
        forager._beating = asyncio.create_task(forager._beat())
        log.info("forager %s joined the colony at %s", id, settings.bus_url)
        return forager

    @property
    def facts(self) -> ForagerFacts:
        """This host's facts, without its shards."""
        return self._facts

    async def wait(self) -> None:
        """Run until cancelled. Raises BusError when the bus closes the connection for good, and whatever
        broke the heartbeat."""
        assert self._beating
        closed = asyncio.create_task(self._bus.wait_closed())
        try:
            await asyncio.wait({closed, self._beating}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
        if self._beating.done():
            self._beating.result()
        raise BusError(
            Reason.BUS_UNREACHABLE,
            f"the bus at {self._settings.bus_url} closed the connection",
            hint="start this forager again",
        )

    async def close(self) -> None:
        """Say goodbye, end all shards, disconnect."""
        if self._beating:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        self._files.close()
        if self._bus.connected:
            try:
                await self._registry.remove(self.id)
            except AntfarmError as error:
                log.warning("no goodbye: %s", error)
        await self._nursery.close()
        await self._bus.close()

    # ---- what it tells

    async def _beat(self) -> None:
        """Renew the registry's entry for as long as the forager lives.

        The queen hears a heartbeat as it passes the bus, whether or not it can be stored: waiting for a
        store that hangs or is full must not delay the next one.
        """
        stored = True
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._put()
                stored = True
            except (AntfarmError, TimeoutError) as error:
                if stored:
                    log.warning("a heartbeat was not stored: %s", str(error) or "the bus does not answer")
                stored = False

    async def _put(self) -> None:
        """A bus that was restarted has no registry until someone makes it."""
        try:
            await self._registry.put(self._facts_now())
        except BusError as error:
            if error.reason is Reason.BUS_UNREACHABLE and self._bus.connected:
                self._registry = await Registry.open(self._bus)
            raise

    def _facts_now(self) -> ForagerFacts:
        return msgspec.structs.replace(self._facts, shards=self._nursery.statuses())

    def _introduce(self, found: Capabilities) -> ForagerFacts:
        settings = self._settings
        return ForagerFacts(
            id=self.id,
            host=socket.gethostname(),
            address=settings.listen,
            cores=cores(),
            threads=settings.shard_threads(),
            memory=settings.memory_budget(),
            backends=found.backends,
            features=found.features,
            version=__version__,
            pid=os.getpid(),
            started=time.time(),
            machine=machine(),
            memory_told=settings.memory > 0,
        )

    async def _report(self, event: ShardEvent | TaskEvent) -> None:
        """A shard's event, onto the bus."""
        try:
            if isinstance(event, TaskAccepted | TaskTokens | TaskOutput | TaskFinished):
                await self._bus.publish(TASK_EVENTS.of(event.task), event)
            else:
                await self._bus.publish(SHARD_EVENTS.of(self.id), event)
        except AntfarmError as error:
            log.error("an event of a shard was lost: %s", error)
            if isinstance(event, TaskOutput):  # larger than the bus takes, say
                await self._report(TaskFinished(event.task, 0, "error", failure=Failure.of(error)))

    # ---- what it is asked

    async def _serve(self) -> None:
        await self._bus.serve(FORAGER_DESCRIBE.of(self.id), self._describe)
        await self._bus.serve(FORAGER_LOAD.of(self.id), self._load)
        await self._bus.serve(FORAGER_LINK.of(self.id), self._link)
        await self._bus.serve(FORAGER_STOP.of(self.id), self._stop)
        await self._bus.serve(FORAGER_ASSIGN.of(self.id), self._assign)
        await self._bus.serve(FORAGER_CANCEL.of(self.id), self._cancel)

    async def _describe(self, request: DescribeModel) -> ModelDescribed:
        return ModelDescribed(await self._files.describe(request.model, self._pull_progress(request.model)))

    async def _load(self, request: ShardLoad) -> ShardListening:
        path = await self._files.path(request.model)
        settings = self._settings
        spec = ShardSpec(
            load=request,
            path=str(path),
            name=f"shard {request.shard} on {self.id}",
            address=settings.listen,
            secret=settings.secret.reveal(),
            threads=self._facts.threads,
        )
        return await self._nursery.load(request, spec)

    async def _link(self, request: ShardLink) -> Done:
        await self._nursery.link(request)
        return Done()

    async def _stop(self, request: ShardStop) -> Done:
        await self._nursery.stop(request.replica, request.epoch)
        return Done()

    async def _assign(self, request: TaskAssign) -> Done:
        await self._nursery.assign(request)
        return Done()

    async def _cancel(self, request: TaskCancel) -> Done:
        await self._nursery.cancel(request)
        return Done()

    def _pull_progress(self, model: str) -> Callable[[int, int], None]:
        """What a download calls, in its own thread."""
        loop = asyncio.get_running_loop()
        told = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told >= PULL_TELLS_S or done == total:
                told = now
                event = PullProgress(self.id, model, done, total)
                asyncio.run_coroutine_threadsafe(self._bus.publish(PULL_EVENTS.of(self.id), event), loop)

        return progress


async def _check_unique(bus: Bus, id: str) -> None:
    """Raise `bad-setting` when a forager of this name answers."""
    try:
        await bus.request(FORAGER_STOP.of(id), ShardStop("", 0))
    except AntfarmError as error:
        if error.reason is Reason.FORAGER_LOST:
            return
        raise
    raise StateError(
        Reason.BAD_SETTING,
        f"a forager named {id} is in this colony already",
        hint="choose another --name",
    )
