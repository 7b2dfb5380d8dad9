"""A whole colony in a test: a real bus and queen here, foragers as processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
from support.forager_process import ForagerProcess

from antfarm.bus import Bus, OpsLog
from antfarm.config import Home
from antfarm.messages import LoadModel, ModelStatus, OpsEvent, TaskAccepted, TaskFinished, TaskTokens
from antfarm.queen.api import ApiServer, bind, create_app
from antfarm.queen.service import Queen
from antfarm.queen.settings import QueenSettings
from antfarm.queen.tasks import TaskRequest
from antfarm.secret import Secret
from antfarm.types import Sampling

GREEDY = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)


class World:
    """One home with a queen and the foragers that a test starts."""

    def __init__(self, home: Home, queen: Queen) -> None:
        self.home = home
        self.queen = queen
        self.foragers: dict[str, ForagerProcess] = {}

    async def forager(self, name: str, mib: int = 1024) -> ForagerProcess:
        started = await ForagerProcess.start(self.home.path, self.queen.bus_url, name, mib)
        self.foragers[name] = started
        await self.until(lambda: name in [f.id for f in self.queen.foragers()])
        return started

    async def load(self, model: Path | str, split: int, name: str = "tiny", **more: object) -> ModelStatus:
        """Load and wait until all its replicas are ready; raises a failure. The first one's status."""
        asked = await self.queen.load(LoadModel(str(model), name=name, split=split, **more))  # type: ignore[arg-type]

        def settled() -> list[ModelStatus]:
            mine = [s for s in self.queen.replicas() if (s.model, s.epoch) == (name, asked.epoch)]
            return [] if any(s.state == "loading" for s in mine) else mine

        replicas = await self.until(settled)
        assert isinstance(replicas, list)
        for status in replicas:
            if status.failure:
                raise status.failure.error()
        return replicas[0]

    async def until(self, true: Callable[[], object], within: float = 60.0) -> object:
        """Look until it is so; the queen has no event for every change that a test waits for."""
        async with asyncio.timeout(within):
            while not (found := true()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return found

    async def ask(self, sampling: Sampling = GREEDY, model: str = "tiny") -> list[int]:
        """The answer's tokens, after checking the order of events."""
        events = [e async for e in self.queen.run(TaskRequest(model, sampling, tokens=(1, 2, 3, 4)))]
        assert events[0] == TaskAccepted(events[0].task, 4)
        last = events[-1]
        assert isinstance(last, TaskFinished) and last.failure is None
        assert last.index == sum(e.count for e in events if isinstance(e, TaskTokens))
        return [p.token for e in events if isinstance(e, TaskTokens) for p in e.logprobs]

    @asynccontextmanager
    async def http(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of the queen's API, which is served on a free port."""
        api = await ApiServer.start(create_app(self.queen), bind("127.0.0.1", 0))
        try:
            async with httpx.AsyncClient(base_url=api.url, timeout=60) as client:
                yield client
        finally:
            await api.stop()

    async def ops(self) -> list[OpsEvent]:
        """What the queen has noted so far: she writes it down in the background."""
        await asyncio.wait_for(self.queen._performer._entries.join(), 30)
        bus = await Bus.connect(self.queen.bus_url, self.token, "reader")
        try:
            return await (await OpsLog.open(bus)).recent(100)
        finally:
            await bus.close()

    @property
    def token(self) -> str:
        return Secret.load_or_create(self.home.secret_file).bus_token()


@asynccontextmanager
async def colony_at(path: Path) -> AsyncIterator[World]:
    """A queen without foragers; whatever the test did, no process may be left."""
    home = Home(path)
    queen = await Queen.start(QueenSettings(home, Secret.load_or_create(home.secret_file), bus_port=0))
    made = World(home, queen)
    try:
        yield made
    finally:
        await asyncio.gather(*(forager.end() for forager in made.foragers.values()))
        await made.queen.close()
        assert left_over(path) == []


def left_over(home: Path) -> list[str]:
    """Processes that this test started and left behind."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:  # it has ended
            continue
        if "antfarm" in words or "nats-server" in words or str(home) in words:
            found.append(words)
    return found
