"""The daemons: `antc queen`, `antc forager`. `antc up` runs these same commands in the background."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from antfarm.cli.options import (
    ApiKey,
    ApiPort,
    BusPort,
    Listen,
    Memory,
    NoApiKey,
    file_path,
    parse_numbers,
    parse_size,
    within,
)
from antfarm.cli.session import home_of
from antfarm.config import API_PORT, BUS_PORT

app = typer.Typer()

Fd = Annotated[int, typer.Option(hidden=True)]


@app.command()
def queen(
    context: typer.Context,
    listen: Listen = "127.0.0.1",
    api_port: ApiPort = API_PORT,
    bus_port: BusPort = BUS_PORT,
    bus: Annotated[str, typer.Option(metavar="URL", help="A NATS with JetStream that runs already.")] = "",
    bus_token: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds the token of that NATS.")
    ] = None,
    api_key: ApiKey = "",
    no_api_key: NoApiKey = False,
    ready_fd: Fd = -1,
    lifeline_fd: Fd = -1,
) -> None:
    """Run a colony's coordinator.

    The bus, the registry, the OpenAI API. Ctrl-C ends it. Ports that are not given are those of the
    home's last queen, if there was one: its foragers go on dialling them.
    """
    from antfarm.cli.joining import settle_key
    from antfarm.cli.serve import run_daemon
    from antfarm.cli.serve_queen import serve_queen
    from antfarm.client import state
    from antfarm.client.disk import usable
    from antfarm.client.launch import QueenOptions, Starter

    home = home_of(context)
    state.check_free(home, "queen")
    settle_key(home, api_key, drop=no_api_key)
    if last := state.last_queen(home):
        api_port = _port(context, "api_port", api_port, last.api)
        bus_port = _port(context, "bus_port", bus_port, last.bus)
    options = QueenOptions(listen, api_port, bus_port, bus, file_path(bus_token))
    with Starter(ready_fd) as starter, usable(home):
        run_daemon(home, "queen", "", starter, lambda daemon: serve_queen(daemon, options), lifeline_fd)


def _port(context: typer.Context, option: str, given: int, last: str) -> int:
    """As given, else that of the last queen's URL, else the default."""
    source = context.get_parameter_source(option)
    return given if source is None or source.name != "DEFAULT" else urlsplit(last).port or given


@app.command()
def forager(
    context: typer.Context,
    join: Annotated[
        str, typer.Option(metavar="LINE", help='antfarm://HOST:PORT/SECRET, or "-" to read it from stdin.')
    ] = "",
    name: Annotated[
        str, typer.Option(metavar="NAME", help="In the colony.  [default: this host's]", show_default=False)
    ] = "",
    memory: Memory = "",
    threads: Annotated[
        int,
        typer.Option(
            metavar="N", callback=within(0), help="Of a shard.  [default: one a core]", show_default=False
        ),
    ] = 0,
    cpus: Annotated[str, typer.Option(metavar="0,1,...", help="Cores that it and its shards keep to.")] = "",
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="For other hosts' shards.  [default: the one that routes to the queen]",
            show_default=False,
        ),
    ] = "",
    bus_token: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds the token of a NATS of your own.")
    ] = None,
    ready_fd: Fd = -1,
    lifeline_fd: Fd = -1,
) -> None:
    """Run this host's worker, which holds shards.

    Without --join, it joins the colony that runs in this home.
    """
    from antfarm.cli.joining import take_invitation
    from antfarm.cli.serve import run_daemon
    from antfarm.cli.serve_forager import forager_settings, serve_forager
    from antfarm.client.disk import usable
    from antfarm.client.launch import ForagerOptions, Starter

    home = home_of(context)
    invitation = take_invitation(home, join) if join else None
    options = ForagerOptions(name, parse_size(memory), threads, parse_numbers(cpus), listen)
    token_file = file_path(bus_token)
    with Starter(ready_fd) as starter, usable(home):
        settings = forager_settings(home, options, invitation, token_file)
        run_daemon(
            home,
            "forager",
            settings.id(),
            starter,
            lambda daemon: serve_forager(daemon, settings, token_file),
            lifeline_fd,
        )
