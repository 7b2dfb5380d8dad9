"""The queen: an async shell around the colony's pure core. What happens becomes an event; what the
core wants done is done."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Self

from antfarm.bus import Bus, EmbeddedServer, Lease, OpsLog, Registry, Subscription
from antfarm.bus.registry import Change
from antfarm.bus.subjects import QUEEN_LOAD, QUEEN_MODELS, QUEEN_STATS, QUEEN_UNLOAD, SHARD_EVENTS
from antfarm.colony import views
from antfarm.colony.core import Colony
from antfarm.colony.events import (
    Broke,
    Event,
    ForagerHeard,
    ForagerLeft,
    LeadSilent,
    LoadAsked,
    LogOps,
    Route,
    ShardHeard,
    Tick,
    UnloadAsked,
    replica_of,
)
from antfarm.colony.state import Limits
from antfarm.config import HEARTBEAT_S, LINK_S, LOAD_S, LOST_AFTER_S, STEP_S
from antfarm.errors import AntfarmError, BusError, Reason
from antfarm.messages import (
    ColonyStats,
    Done,
    Failure,
    ForagerFacts,
    ListModels,
    ListStats,
    LoadModel,
    ModelList,
    ModelStatus,
    ShardEvent,
    ShardStats,
    TaskEvent,
    UnloadModel,
)
from antfarm.model.catalog import default_name
from antfarm.queen.affinity import Affinity
from antfarm.queen.performer import FETCH_S, Performer, unforeseen
from antfarm.queen.settings import QueenSettings
from antfarm.queen.stats import Stats
from antfarm.queen.tasks import TaskRequest, Tasks

log = logging.getLogger(__name__)

# Longer than a shard's own limits, so that its typed error comes before our timeout.
GRACE_S = 5.0
LIMITS = Limits(
    lost=LOST_AFTER_S, fetch=FETCH_S + GRACE_S, load=LOAD_S, link=LINK_S + GRACE_S, prove=2 * STEP_S + GRACE_S
)


class Queen:
    """A running queen; made with `Queen.start`, ended with `close`. `tasks` runs what clients ask."""

    def __init__(self, settings: QueenSettings, server: EmbeddedServer | None, bus: Bus, ops: OpsLog) -> None:
        self._settings = settings
        self._server = server
        self._bus = bus
        self._colony = Colony(LIMITS)
        self.tasks = Tasks(bus, self._route, self._lead_silent)
        self._stats = Stats()
        self._affinity = Affinity()
        self._performer = Performer(bus, ops, self.tasks, self._happened)
        self._lease: Lease | None = None
        self._jobs: list[asyncio.Task[None]] = []
        self._epoch_offset = time.time() - time.monotonic()

    @classmethod
    async def start(cls, settings: QueenSettings) -> Self:
        """Start the bus if it is ours, take the lease, and learn which foragers are there.

        Raises StateError `colony-exists` or `port-in-use`; BusError `bus-unreachable`,
        `bus-unauthorized` or `bus-full`.
        """
        async with AsyncExitStack() as undo:
            server = None
            if not settings.bus_url:
                server = await _start_server(settings, settings.bus_port)
                undo.push_async_callback(server.close)
            bus = await Bus.connect(server.url if server else settings.bus_url, settings.token(), "queen")
            undo.push_async_callback(bus.close)
            queen = cls(settings, server, bus, await OpsLog.open(bus))
            undo.push_async_callback(queen.close)
            await queen._begin(await Registry.open(bus))
            undo.pop_all()
        return queen

    @property
    def bus_url(self) -> str:
        return self._bus.url

    def foragers(self) -> list[ForagerFacts]:
        """The live foragers, by id."""
        return self._colony.foragers()

    def status(self) -> list[ModelStatus]:
        """Every model as clients meet it, in the order of loading."""
        return [views.status(model, self._epoch_offset) for model in self._colony.models()]

    def replicas(self) -> list[ModelStatus]:
        """All replicas; before each the new split that is on its way, or failed to get there."""
        found = [replica for model in self._colony.models() for replica in model.replicas()]
        return [views.replica_status(replica, self._epoch_offset) for replica in found]

    def missing(self, name: str) -> AntfarmError:
        """Why there is no model of this name: `model-unknown` or `model-retired`."""
        return self._colony.missing(name)

    def run(self, request: TaskRequest) -> AsyncGenerator[TaskEvent, None]:
        """`tasks.run`, counted. What names no loaded model is refused uncounted."""
        events = self.tasks.run(request)
        loaded = any(model.name == request.model for model in self._colony.loaded())
        return self._stats.observed(request.model, events) if loaded else events

    def stats(self) -> ColonyStats:
        """Everything that is counted, as of now: loads that failed are not."""
        loaded = self._colony.loaded()
        seated = [replica for model in loaded for replica in model.seated()]
        return self._stats.report(
            len(self._colony.foragers()),
            {model.name: views.status(model, self._epoch_offset).state for model in loaded},
            [views.replica_status(replica, self._epoch_offset) for replica in seated],
        )

    async def load(self, ask: LoadModel) -> ModelStatus:
        """Begin to load a model, or to change its split. Raises AntfarmError when that can't begin."""
        name = ask.name or (ask.model if ask.reshard else default_name(ask.model))
        self._happened(LoadAsked(name, ask))
        return next(status for status in self.replicas() if status.model == name)

    async def unload(self, model: str) -> None:
        """End a model; returns when its processes have ended. Raises `model-unknown`, `model-retired`."""
        await asyncio.gather(*self._happened(UnloadAsked(model)))

    async def wait(self) -> None:
        """Run until cancelled. Raises what ends the queen: a lost lease, a bus that can't be kept up."""
        closed = asyncio.create_task(self._bus.wait_closed())
        try:
            done, _ = await asyncio.wait({closed, *self._jobs}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
        for job in done - {closed}:
            job.result()
        raise BusError(
            Reason.BUS_UNREACHABLE,
            f"the bus at {self.bus_url} closed the connection",
            hint="start the queen again",
        )

    async def close(self) -> None:
        """End all models, give the lease back, and stop the bus if it is ours."""
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self.tasks.close()
        if self._bus.connected:
            stops = [
                job for model in self._colony.loaded() for job in self._happened(UnloadAsked(model.name))
            ]
            await asyncio.gather(*stops, return_exceptions=True)
            if self._lease:
                await self._lease.release()
        await self._performer.close()
        await self._bus.close()
        if self._server:
            await self._server.close()

    def _route(self, request: TaskRequest) -> Route:
        preferred = self._affinity.recall(request)
        route = self._colony.route(request.model, self.tasks.underway(), preferred)
        self._affinity.remember(request, (route.replica, route.epoch))
        return route

    # ---- events

    def _lead_silent(self, route: Route, silence: float, failure: Failure) -> None:
        self._happened(LeadSilent(route.replica, route.epoch, silence, failure))

    def _happened(self, event: Event) -> list[asyncio.Task[None]]:
        """Tell the core, and begin what it wants done."""
        try:
            wanted = self._colony.handle(event, time.monotonic())
        except AntfarmError:
            raise
        except Exception as error:  # one replica's trouble must not be the queen's end
            log.exception("the colony broke on: %s", event)
            if isinstance(event, LoadAsked | UnloadAsked | Broke):
                raise
            if (replica := replica_of(event)) is None:
                return []
            wanted = self._colony.handle(Broke(*replica, unforeseen(error)), time.monotonic())
        return [job for one in wanted if (job := self._performer.begin(one))]

    async def _begin(self, registry: Registry) -> None:
        began = time.strftime("%Y-%m-%d %H:%M:%S")
        self._lease = await registry.acquire(
            f"process {os.getpid()} on {socket.gethostname()}, started {began},"
        )
        await self.tasks.start()
        changes, shards = await registry.watch(), await self._bus.subscribe(SHARD_EVENTS)
        for facts in await registry.snapshot():
            self._happened(ForagerHeard(facts))
        await self._bus.serve(QUEEN_LOAD, self.load)
        await self._bus.serve(QUEEN_UNLOAD, self._unload)
        await self._bus.serve(QUEEN_MODELS, self._models)
        await self._bus.serve(QUEEN_STATS, self._list_stats)
        jobs = [
            self._lease.keep(),
            self._hear_foragers(changes),
            self._hear_shards(shards),
            self._tick(),
            self.tasks.wait(),
        ]
        if self._server:
            jobs.append(self._keep_server(self._server))
        self._jobs = [asyncio.create_task(job) for job in jobs]

    async def _hear_foragers(self, changes: Subscription[Change]) -> None:
        async for change in changes:
            self._happened(
                ForagerHeard(change) if isinstance(change, ForagerFacts) else ForagerLeft(change.id)
            )

    async def _hear_shards(self, events: Subscription[ShardEvent]) -> None:
        async for event in events:
            if isinstance(event, ShardStats):
                self._stats.hear(event)
                if event.lead:
                    self.tasks.hear_lead(event.replica, event.epoch)
            else:
                self._happened(ShardHeard(event))

    async def _tick(self) -> None:
        while True:
            self._happened(Tick(listening=await self._bus.answers(HEARTBEAT_S)))
            await asyncio.sleep(HEARTBEAT_S)

    async def _keep_server(self, server: EmbeddedServer) -> None:
        """A nats-server that ends is started again on its port; clients reconnect by themselves."""
        while True:
            code = await server.wait()
            log.error("nats-server ended with %d; starting it again", code)
            await server.close()
            server = self._server = await _start_server(self._settings, server.port)
            self._performer.begin(LogOps("bus-restarted", "bus", f"nats-server ended with {code}"))

    # ---- operators

    async def _unload(self, request: UnloadModel) -> Done:
        await self.unload(request.model)
        return Done()

    async def _models(self, request: ListModels) -> ModelList:
        return ModelList(tuple(self.replicas()))

    async def _list_stats(self, request: ListStats) -> ColonyStats:
        return self.stats()


async def _start_server(settings: QueenSettings, port: int) -> EmbeddedServer:
    return await EmbeddedServer.start(settings.home, settings.token(), host=settings.bus_host, port=port)
