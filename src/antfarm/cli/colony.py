"""A colony on this machine: `antc up`, `antc down`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from antfarm.cli.loading import load_and_watch, pull_and_show
from antfarm.cli.options import (
    ApiKey,
    ApiPort,
    BusPort,
    Context,
    KvType,
    Listen,
    Memory,
    Mode,
    NoApiKey,
    PrefillShare,
    Queue,
    ServedName,
    Shares,
    Slots,
    Split,
    Stages,
    load_request,
    parse_size,
    within,
)
from antfarm.cli.output import note, say
from antfarm.cli.session import home_of, with_control
from antfarm.config import API_PORT, BUS_PORT

app = typer.Typer()


@app.command()
def up(
    context: typer.Context,
    foragers: Annotated[
        int, typer.Option(metavar="N", callback=within(1, 64), help="How many, sharing this host's cores.")
    ] = 1,
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="Load it: a catalog name, a path or a URL.", show_default=False),
    ] = "",
    name: ServedName = "",
    split: Split = 0,
    mode: Mode = "auto",
    stages: Stages = 0,
    shares: Shares = "",
    context_length: Context = 0,
    slots: Slots = 0,
    queue: Queue = 256,
    prefill_share: PrefillShare = 0.5,
    kv_type: KvType = "f16",
    memory: Memory = "",
    listen: Listen = "127.0.0.1",
    api_port: ApiPort = API_PORT,
    bus_port: BusPort = BUS_PORT,
    api_key: ApiKey = "",
    no_api_key: NoApiKey = False,
) -> None:
    """Start a colony on this machine.

    A queen, foragers, and a model if one is named, in the background. Returns when all are ready.
    """
    from antfarm.cli.joining import join_line, settle_key
    from antfarm.client import launch, state

    home = home_of(context)
    state.check_free(home, "up")
    wanted = load_request(
        model,
        name=name,
        split=split,
        mode=mode,
        stages=stages,
        shares=shares,
        context=context_length,
        slots=slots,
        queue=queue,
        prefill_share=prefill_share,
        kv_type=kv_type,
    )
    settle_key(home, api_key, drop=no_api_key)
    if model:
        pull_and_show(home, wanted.model)  # what is wrong with it is told before anything starts
    queen_options = launch.QueenOptions(listen, api_port, bus_port)
    options = launch.divide_host(foragers, launch.ForagerOptions(memory=parse_size(memory)))
    queen = launch.start_colony(home, queen_options, options)
    try:
        note(f"queen and {foragers} forager{'s'[: foragers > 1]} are up")
        if model:
            with_control(home, lambda control: load_and_watch(control, wanted))
    except BaseException:
        note("taking the colony down again")
        launch.stop_colony(home)
        raise
    say(f"API    {queen.api}/v1")
    if home.api_key_file.exists():
        say(f"key    the one in {home.api_key_file}; `antc up --no-api-key` drops it")
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
