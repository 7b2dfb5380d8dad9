"""The forager as a daemon: which colony it joins, and where its shards listen."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import psutil

from antfarm.cli.addresses import is_wildcard, towards
from antfarm.cli.joining import Invitation
from antfarm.cli.output import note, size
from antfarm.cli.serve import Daemon, until_stopped
from antfarm.client import state
from antfarm.client.control import bus_token, no_colony
from antfarm.client.launch import ForagerOptions
from antfarm.client.state import Process
from antfarm.config import Home
from antfarm.errors import Reason, RequestError
from antfarm.forager.daemon import Forager
from antfarm.forager.settings import ForagerSettings
from antfarm.secret import Secret


def forager_settings(
    home: Home, options: ForagerOptions, invitation: Invitation | None, token_file: str
) -> ForagerSettings:
    """What is given, and the rest from the home. Raises `colony-down` when there is nothing to join."""
    member = state.read(home).on_bus()
    if invitation is None and member is None:
        raise no_colony(home)
    if not home.secret_file.exists():
        raise RequestError(
            Reason.BAD_SETTING,
            f"{home.path} holds no colony's secret",
            hint="give the whole line that `antc nodes --join` prints on the queen's host",
        )
    _keep_to(options.cpus)
    bus = invitation.bus if invitation else member.bus if member else ""
    token = token_file or (member.bus_token if member and not invitation else "")
    return ForagerSettings(
        home,
        Secret.load_or_create(home.secret_file),
        bus_url=bus,
        bus_token=bus_token(home, token),
        name=options.name,
        memory=options.memory,
        threads=options.threads,
        listen=_listen(options.listen, bus),
    )


async def serve_forager(daemon: Daemon, settings: ForagerSettings, token_file: str) -> None:
    """Run until stopped, or until the bus refuses to go on."""
    forager = await Forager.start(settings)
    try:
        facts = forager.facts
        daemon.ready(Process("forager", forager.id, bus=settings.bus_url, bus_token=token_file))
        note(f"forager {forager.id} has joined the colony at {settings.bus_url}")
        note(f"its shards listen on {facts.address}: {size(facts.memory)}, {facts.threads} threads each")
        note("Ctrl-C ends it")
        await until_stopped(daemon, forager.wait())
    finally:
        await forager.close()


def _keep_to(cpus: tuple[int, ...]) -> None:
    """Pin this process, and with it all that it starts."""
    if not cpus:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise RequestError(Reason.BAD_SETTING, "--cpus: this system pins no processes", hint="leave it out")
    have = os.sched_getaffinity(0)
    if missing := [cpu for cpu in cpus if cpu not in have]:
        raise RequestError(
            Reason.BAD_SETTING,
            f"this host has no core {missing[0]}",
            hint=f"--cpus takes of {', '.join(map(str, sorted(have)))}",
        )
    for thread in psutil.Process().threads():  # libraries have started some
        os.sched_setaffinity(thread.id, cpus)


def _listen(given: str, bus: str) -> str:
    """Where peers reach this host's shards: as given, else the address that leads to the bus."""
    if is_wildcard(given):
        raise RequestError(
            Reason.BAD_SETTING,
            f"--listen {given} is no address that other hosts could connect to",
            hint="name this host's address on the network of the other hosts",
        )
    at = urlsplit(bus)
    return given or towards(at.hostname or "127.0.0.1", at.port or 4222)
