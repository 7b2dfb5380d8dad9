"""An operator's connection to a colony, over the bus: what `antc load`, `ps`, `nodes` and `ops` use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

from antfarm.bus import Bus, OpsLog, Registry
from antfarm.bus.subject import RequestSubject
from antfarm.bus.subjects import PULL_EVENTS, QUEEN_LOAD, QUEEN_MODELS, QUEEN_STATS, QUEEN_UNLOAD
from antfarm.client import state
from antfarm.config import LOAD_S, REQUEST_S, Home
from antfarm.errors import BusError, Reason, StateError
from antfarm.messages import (
    ColonyStats,
    Failure,
    ForagerFacts,
    ListModels,
    ListStats,
    LoadModel,
    ModelStatus,
    OpsEvent,
    PullProgress,
    UnloadModel,
)
from antfarm.secret import Secret

M = TypeVar("M")
R = TypeVar("R")

WATCH_S = 0.2  # between looks at a loading model


class Control:
    """Requests to the queen and looks at the registry; made with `Control.connect`, ended with `close`.

    Every call raises `BusError` when the bus fails, and the queen's own error when she refuses.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @classmethod
    async def connect(cls, home: Home) -> Self:
        """Connect to the bus that this home's queen or foragers use. Raises `StateError` `colony-down`."""
        member = state.read(home).on_bus()
        if member is None:
            raise no_colony(home)
        try:
            return cls(await Bus.connect(member.bus, bus_token(home, member.bus_token), "operator"))
        except BusError as error:
            if error.reason is Reason.BUS_UNREACHABLE and state.bereft(home):
                error.hint = state.REVIVE
            raise

    async def close(self) -> None:
        await self._bus.close()

    async def load(self, wanted: LoadModel) -> ModelStatus:
        """Ask for a model, or with `reshard` for another split of it. It is loading when this returns."""
        return await self._ask(QUEEN_LOAD, wanted, within=LOAD_S)

    async def unload(self, model: str) -> None:
        await self._ask(QUEEN_UNLOAD, UnloadModel(model))

    async def models(self) -> tuple[ModelStatus, ...]:
        return (await self._ask(QUEEN_MODELS, ListModels())).models

    async def stats(self) -> ColonyStats:
        """What the queen has counted so far."""
        return await self._ask(QUEEN_STATS, ListStats())

    async def watch(self, model: str, within: float = LOAD_S) -> AsyncIterator[ModelStatus]:
        """What becomes of a loading model's replicas, look by look, until all are `ready`.

        Raises the failure of one that does not come to that, once none is loading any more; and `timeout`.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + within
        while clock() < deadline:
            replicas = await self._replicas(model)
            settled = all(status.state != "loading" for status in replicas)
            failed = next((status for status in replicas if status.state != "ready"), None)
            if settled and failed:
                raise (failed.failure or Failure(Reason.SHARD_FAILED, f"{model} is {failed.state}")).error()
            for status in replicas:
                yield status
            if settled:
                return
            await asyncio.sleep(WATCH_S)
        raise StateError(Reason.TIMEOUT, f"{model} was not ready within {within:g} s", seconds=within)

    async def _replicas(self, model: str) -> list[ModelStatus]:
        """One status of each replica: of its new split, if one is on its way."""
        found: dict[str, ModelStatus] = {}
        for status in await self.models():
            if status.model == model:
                found.setdefault(status.replica, status)
        if not found:
            raise StateError(Reason.MODEL_RETIRED, f"{model} was unloaded while it was loading")
        return list(found.values())

    async def pulls(self) -> AsyncIterator[PullProgress]:
        """Downloads of models by the colony's foragers, as they go on."""
        async with await self._bus.subscribe(PULL_EVENTS) as events:
            async for event in events:
                yield event

    async def nodes(self) -> list[ForagerFacts]:
        """The Worker Node Registry."""
        return await (await Registry.open(self._bus)).snapshot()

    async def ops(self, n: int) -> list[OpsEvent]:
        """The last `n` events, oldest first."""
        return await (await OpsLog.open(self._bus)).recent(n)

    async def ops_counts(self) -> dict[str, int]:
        return await (await OpsLog.open(self._bus)).counts()

    async def follow_ops(self, n: int) -> AsyncIterator[OpsEvent]:
        """The last `n` events, then new ones as they come."""
        async for event in (await OpsLog.open(self._bus)).follow(n):
            yield event

    async def _ask(self, subject: RequestSubject[M, R], message: M, within: float = REQUEST_S) -> R:
        try:
            return await self._bus.request(subject, message, within)
        except BusError as error:
            if error.reason is Reason.TIMEOUT:
                error.hint = "look into her log; `antc down` and `antc up` start afresh"
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def no_colony(home: Home) -> StateError:
    return StateError(
        Reason.COLONY_DOWN,
        f"no colony runs in {home.path}",
        hint="start one with `antc up`, or name another home with --home",
    )


def no_queen(home: Home) -> StateError:
    """Why this home has no API and no join line: nothing runs here, or only foragers, of a queen
    that has ended or is elsewhere."""
    member = state.read(home).on_bus()
    if member is None:
        return no_colony(home)
    if state.bereft(home):
        return StateError(
            Reason.COLONY_DOWN, f"the queen of {home.path} has ended; its foragers run", hint=state.REVIVE
        )
    host = urlsplit(member.bus).hostname or ""
    here = host in ("localhost", "::1") or host.startswith("127.")
    return StateError(
        Reason.COLONY_DOWN,
        f"{home.path} is a forager's home; its queen, with the API, is at {host}",
        hint="that is this host: name the queen's home with --home; if she has ended, run `antc queen` there"
        if here
        else "run this there, or give an OpenAI client that host's API",
    )


def _token(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(
            Reason.BAD_SETTING, f"the bus's token can't be read: {error}", hint="check --bus-token"
        ) from error


def bus_token(home: Home, token_file: str) -> str:
    """What the bus asks of us: the content of `token_file` for a NATS of your own, else the colony's."""
    if token_file:
        return _token(Path(token_file))
    return Secret.load_or_create(home.secret_file).bus_token()
