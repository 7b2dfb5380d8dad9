"""Bringing a model into the colony, and telling the person who waits how far it is."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from antfarm.cli.output import note, say
from antfarm.errors import AntfarmError
from antfarm.types import DEFAULT_SLOTS, default_context

if TYPE_CHECKING:
    from antfarm.cli.progress import Display
    from antfarm.client.control import Control
    from antfarm.config import Home
    from antfarm.messages import LoadModel, ModelStatus


def pull_and_show(home: Home, model: str) -> Path:
    """The model's file on this host, fetched with a progress bar unless it is here."""
    from antfarm.cli.progress import Display
    from antfarm.model.catalog import Catalog

    home.make()
    with Display() as display:
        return Catalog(home.models).pull(model, partial(display.fetched, model))


async def load_and_watch(control: Control, wanted: LoadModel) -> ModelStatus:
    """Load, show the progress of downloads and shards, and say what became of it."""
    import asyncio

    from antfarm.cli.progress import Display

    with Display() as display:
        pulls = asyncio.ensure_future(_show_pulls(control, display))
        try:
            last = await control.load(wanted)
            async for status in control.watch(last.model):
                display.loading(status)
                last = status
        finally:
            pulls.cancel()
    split = how_split(last) if wanted.replicas == 1 else f"{wanted.replicas} replicas, each {how_split(last)}"
    say(f"{last.model} is ready: {split}, context {last.context} x {last.slots}, {last.seconds:.1f} s")
    if less := what_did_not_fit(wanted, last):
        note(less)
    if last.context > last.trained:
        note(
            f"{last.model} was trained for {last.trained} tokens: "
            f"beyond them, its context of {last.context} may give nonsense"
        )
    return last


async def load_or_unload(control: Control, wanted: LoadModel) -> None:
    """As `load_and_watch`; interrupted, the model is unloaded again, unless it was there before."""
    import asyncio

    from antfarm.model.catalog import default_name

    name = wanted.name or default_name(wanted.model)
    before = {status.model for status in await control.models() if status.state != "failed"}
    try:
        await load_and_watch(control, wanted)
    except asyncio.CancelledError:
        if name not in before:
            with suppress(AntfarmError):  # it had not come so far, or nobody listens any more
                await control.unload(name)
                note(f"{name} is unloaded again")
        raise


async def reshard_and_watch(control: Control, wanted: LoadModel) -> None:
    """As `load_and_watch`; interrupted, the queen goes on."""
    import asyncio

    try:
        await load_and_watch(control, wanted)
    except asyncio.CancelledError:
        note(
            f"the change of {wanted.model} goes on; `antc ps` shows it, `antc unload {wanted.model}` ends it"
        )
        raise


def how_split(status: ModelStatus) -> str:
    return f"{status.mode} {len(status.shards)}" if len(status.shards) > 1 else "unsplit"


def what_did_not_fit(wanted: LoadModel, status: ModelStatus) -> str:
    """What the memory allowed less of than the defaults, which a load may not have expected; or nothing."""
    context, slots = default_context(status.trained), DEFAULT_SLOTS
    if wanted.reshard:
        return ""
    less = []
    if not wanted.options.context and status.context < context:
        less.append(f"a context of {status.context} tokens instead of {context}")
    if not wanted.options.slots and status.slots < slots:
        less.append(f"{status.slots} answers at once instead of {slots}")
    return f"memory is short: {' and '.join(less)}; more memory, or a wider split, makes room" if less else ""


async def _show_pulls(control: Control, display: Display) -> None:
    async for pull in control.pulls():
        display.pulling(pull)
