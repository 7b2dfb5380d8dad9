"""A colony on this machine: `antc up`, `antc down`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from antfarm.cli.models import load_and_watch, pull_and_show
from antfarm.cli.options import (
    ApiKey,
    ApiPort,
    BusPort,
    Context,
    KvType,
    Listen,
    Memory,
    Mode,
    Slots,
    Split,
    absolute_ref,
    parse_size,
)
from antfarm.cli.output import note, say
from antfarm.cli.session import home_of, with_control
from antfarm.config import API_PORT, BUS_PORT

app = typer.Typer()


@app.command()
def up(
    context: typer.Context,
    foragers: Annotated[
        int, typer.Option(metavar="N", min=1, max=64, help="How many, sharing this host's cores.")
    ] = 1,
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="Load it: a catalog name, a path or a URL.", show_default=False),
    ] = "",
    split: Split = 0,
    mode: Mode = "auto",
    context_length: Context = 0,
    slots: Slots = 0,
    kv_type: KvType = "f16",
    memory: Memory = "",
    listen: Listen = "127.0.0.1",
    api_port: ApiPort = API_PORT,
    bus_port: BusPort = BUS_PORT,
    api_key: ApiKey = "",
) -> None:
    """Start a colony on this machine.

    A queen, foragers, and a model if one is named, in the background. Returns when all are ready.
    """
    from antfarm.cli.joining import hide_key, join_line
    from antfarm.client import launch
    from antfarm.messages import LoadModel
    from antfarm.types import RunOptions

    home = home_of(context)
    hide_key(home, api_key)
    queen_options = launch.QueenOptions(listen, api_port, bus_port)
    options = launch.divide_host(foragers, launch.ForagerOptions(memory=parse_size(memory)))
    queen = launch.start_colony(home, queen_options, options)
    try:
        note(f"queen and {foragers} forager{'s'[: foragers > 1]} are up")
        if model:
            ref = absolute_ref(model)
            pull_and_show(home, ref)
            run = RunOptions(context=context_length, slots=slots, kv_type=kv_type)
            wanted = LoadModel(ref, split=split, mode=mode, options=run)
            with_control(home, lambda control: load_and_watch(control, wanted))
    except BaseException:
        note("taking the colony down again")
        launch.stop_colony(home)
        raise
    say(f"API    {queen.api}/v1")
    if sys.stdout.isatty():
        say(f"join   {join_line(home)}")
    else:
        say("join   `antc nodes --join` prints the line, which holds the secret")
    say("stop   antc down")


@app.command()
def down(context: typer.Context) -> None:
    """End everything that runs in this home.

    Ending a colony that is down is no error.
    """
    from antfarm.client.launch import stop_colony

    ended = stop_colony(home_of(context))
    for process in ended:
        say(f"ended {process.role} {process.name}".rstrip() + f" (process {process.pid})")
    if not ended:
        say("nothing runs here")
