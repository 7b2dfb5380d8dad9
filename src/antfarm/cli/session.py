"""What every command is given: the home it works on, and how it runs asynchronous work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from antfarm.config import Home

if TYPE_CHECKING:
    from antfarm.client.control import Control

T = TypeVar("T")


@dataclass
class Session:
    """One run of `antc`. `given`: with --home."""

    given: Path | None = None

    @property
    def home(self) -> Home:
        return Home.find(self.given)


def home_of(context: typer.Context) -> Home:
    return context.ensure_object(Session).home


def with_control(home: Home, work: Callable[[Control], Awaitable[T]]) -> T:
    """Connect to the home's colony, do the work, disconnect."""
    import asyncio

    from antfarm.client.control import Control

    async def run() -> T:
        async with await Control.connect(home) as control:
            return await work(control)

    return asyncio.run(run())
