"""A colony from Python: start one (or connect to one that runs), load a model, ask it.

    with Colony(foragers=2) as colony:
        model = colony.load("smollm2", split=2)
        print(model.ask("Why is the sky blue?"))

The same with `async with`, and the methods that begin with an `a`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self, TypedDict, Unpack

import httpx

from antfarm.client import launch, wire
from antfarm.client.answers import api_of
from antfarm.client.blocking import Blocking
from antfarm.client.control import Control
from antfarm.client.disk import absolute_ref
from antfarm.client.model import Model
from antfarm.config import Home
from antfarm.errors import Reason, StateError
from antfarm.messages import LoadModel, ModelStatus
from antfarm.types import RunOptions


class Loading(TypedDict, total=False):
    """How a model is loaded; what is left out the queen decides."""

    name: str  # to serve it under
    split: int  # shards
    mode: str  # auto | tensor | pipeline | hybrid
    stages: int  # of a hybrid
    shares: tuple[float, ...]  # relative sizes of the shards
    replicas: int  # each on foragers of its own
    options: RunOptions
    progress: Callable[[ModelStatus], None]  # called a few times a second, from the thread that loads


class Colony:
    """A context manager, blocking or asynchronous. All errors are `AntfarmError`.

    `Colony(...)` starts a colony of this program's own on free ports, and ends it with the block.
    `home` is its folder; None takes a temporary one, with the models that this user has pulled already.
    `memory` (bytes) and `threads` are each forager's; 0 shares this host evenly.
    """

    def __init__(
        self,
        *,
        foragers: int = 1,
        home: str | os.PathLike[str] | None = None,
        memory: int = 0,
        threads: int = 0,
    ) -> None:
        each = launch.ForagerOptions(memory=memory, threads=threads)
        self._access: Callable[[], AbstractContextManager[_Place]] = partial(_own, foragers, each, home)
        self._stack = ExitStack()
        self._open_place: _Place | None = None
        self._thread: Blocking | None = None

    @classmethod
    def connect(cls, where: str | os.PathLike[str] | None = None, *, api_key: str = "") -> Self:
        """A colony that runs already: `where` is its API's URL, or its home here (None: the usual home).

        By URL models can be asked, but not loaded: that takes the home, which holds the secret.
        """
        colony = cls()
        colony._access = partial(_running, where, api_key)
        return colony

    @property
    def base_url(self) -> str:
        """What an OpenAI client is given as `base_url`."""
        return f"{self._place().url}/v1"

    @property
    def api_key(self) -> str:
        """What an OpenAI client is given as `api_key`; empty when the API asks for none."""
        return self._place().key

    @property
    def home(self) -> Path | None:
        """The colony's folder on this host; None when connected by URL."""
        home = self._place().home
        return home.path if home else None

    def model(self, name: str = "") -> Model:
        """A model that is loaded already, to be asked; empty takes the only one."""
        return Model(name, self._place().http, self._blocking)

    def load(self, model: str, **how: Unpack[Loading]) -> Model:
        """Load a model (a catalog name, a path or a URL) and return once a token has passed through it.

        Raises what keeps it from that: `model-unknown`, `no-capacity`, `split-impossible`, ...
        """
        return self._blocking().run(self.aload(model, **how))

    def unload(self, name: str) -> None:
        """Take a model out of the colony; its memory is free when this returns."""
        self._blocking().run(self.aunload(name))

    def models(self) -> list[ModelStatus]:
        """Every model of the colony, with its shards."""
        return self._blocking().run(self.amodels())

    async def aload(self, model: str, **how: Unpack[Loading]) -> Model:
        """As `load`."""
        wanted = LoadModel(
            absolute_ref(model),
            name=how.get("name", ""),
            split=how.get("split", 0),
            mode=how.get("mode", "auto"),
            stages=how.get("stages", 0),
            shares=how.get("shares", ()),
            options=how.get("options", RunOptions()),
            replicas=how.get("replicas", 1),
        )
        async with await self._control() as control:
            name = (await control.load(wanted)).model
            async for status in control.watch(name):
                if progress := how.get("progress"):
                    progress(status)
        return self.model(name)

    async def aunload(self, name: str) -> None:
        """As `unload`."""
        async with await self._control() as control:
            await control.unload(name)

    async def amodels(self) -> list[ModelStatus]:
        """As `models`."""
        async with await self._control() as control:
            return list(await control.models())

    # ---- the block

    def __enter__(self) -> Self:
        place = self._open()
        thread = self._thread = Blocking()
        self._stack.callback(thread.close)
        self._stack.callback(lambda: thread.run(place.http.aclose()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    async def __aenter__(self) -> Self:
        opening = asyncio.ensure_future(asyncio.to_thread(self._open))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait([opening])
            await asyncio.to_thread(self._close)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._place().http.aclose()
        await asyncio.shield(asyncio.to_thread(self._close))

    def _open(self) -> _Place:
        self._open_place = self._stack.enter_context(self._access())
        return self._open_place

    def _close(self) -> None:
        self._open_place = self._thread = None
        self._stack.close()

    def _place(self) -> _Place:
        if self._open_place is None:
            raise StateError(
                Reason.COLONY_DOWN, "this Colony is not open", hint="use it inside `with` or `async with`"
            )
        return self._open_place

    def _blocking(self) -> Blocking:
        self._place()
        if self._thread is None:
            raise StateError(
                Reason.BAD_SETTING,
                "this Colony was opened with `async with`",
                hint="use the methods that begin with an `a`: aload, aask, astream",
            )
        return self._thread

    async def _control(self) -> Control:
        home = self._place().home
        if home is None:
            raise StateError(
                Reason.BAD_SETTING,
                "this Colony was connected by the API's URL, which can't load models",
                hint="Colony.connect(HOME), on a host of the colony",
            )
        return await Control.connect(home)


class _Place:
    """Where a colony is reached. `home`: None without access to its bus."""

    def __init__(self, url: str, key: str, home: Home | None) -> None:
        self.url = url
        self.key = key
        self.home = home
        self.http = httpx.AsyncClient(**wire.options(url, key))


@contextmanager
def _own(
    foragers: int, each: launch.ForagerOptions, given: str | os.PathLike[str] | None
) -> Iterator[_Place]:
    with ExitStack() as stack:
        home = Home.find(given) if given else stack.enter_context(_temporary_home())
        queen = launch.QueenOptions(api_port=0, bus_port=0)
        stack.enter_context(launch.own_colony(home, queen, launch.divide_host(foragers, each)))
        yield _Place(*api_of(home), home)


@contextmanager
def _temporary_home() -> Iterator[Home]:
    models = Home.find().models
    models.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="antfarm-") as folder:
        home = Home(Path(folder))
        home.models.symlink_to(models.absolute(), target_is_directory=True)
        yield home


@contextmanager
def _running(where: str | os.PathLike[str] | None, key: str) -> Iterator[_Place]:
    if isinstance(where, str) and where.startswith(("http://", "https://")):
        yield _Place(where.rstrip("/").removesuffix("/v1"), key, None)
    else:
        home = Home.find(where)
        url, known = api_of(home)
        yield _Place(url, key or known, home)
