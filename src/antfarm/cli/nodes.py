"""Who is in the colony, and what happened in it: `antc nodes`, `antc ops`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from antfarm.cli.options import Json, within
from antfarm.cli.output import document, note, say, size, table
from antfarm.cli.session import home_of, with_control

if TYPE_CHECKING:
    from antfarm.client.control import Control
    from antfarm.messages import OpsEvent

app = typer.Typer()

HEADING = f"{'TIME':<19}  {'KIND':<16} {'SUBJECT':<16} WHAT"


@app.command()
def nodes(
    context: typer.Context,
    as_json: Json = False,
    join: Annotated[
        bool, typer.Option("--join", help="Print the line that joins another host. It holds the secret.")
    ] = False,
) -> None:
    """Show the registry of live foragers: host, cores, memory, shards."""
    home = home_of(context)
    if join:
        from antfarm.cli.joining import join_line

        say(join_line(home))
        return
    found = with_control(home, lambda control: control.nodes())
    if as_json:
        document(found)
        return
    table(
        ("FORAGER", "HOST", "ADDRESS", "CORES", "THREADS", "MEMORY", "SHARDS", "BACKENDS", "VERSION", "UP"),
        (
            (
                node.id,
                node.host,
                node.address,
                str(node.cores),
                str(node.threads),
                size(node.memory),
                str(len(node.shards)),
                ",".join(node.backends),
                node.version,
                _age(time.time() - node.started),
            )
            for node in found
        ),
    )
    if not found:
        note("no foragers; `antc nodes --join` prints the line that joins a host")


@app.command()
def ops(
    context: typer.Context,
    number: Annotated[
        int, typer.Option("-n", "--number", metavar="N", callback=within(1), help="How many of the latest.")
    ] = 50,
    count: Annotated[bool, typer.Option("--count", help="How many events of each kind.")] = False,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new ones as they come.")] = False,
    as_json: Json = False,
) -> None:
    """Show what happened to foragers and models.

    Times are this host's. With --follow, --json prints one object a line.
    """
    home = home_of(context)
    if count:
        counts = with_control(home, lambda control: control.ops_counts())
        document(counts) if as_json else table(("KIND", "COUNT"), ((k, str(n)) for k, n in counts.items()))
    elif follow:
        if not as_json:
            say(HEADING)

        async def tail(control: Control) -> None:
            import msgspec

            async for event in control.follow_ops(number):
                say(msgspec.json.encode(event).decode() if as_json else _line(event))

        with_control(home, tail)
    else:
        events = with_control(home, lambda control: control.ops(number))
        document(events) if as_json else say("\n".join([HEADING, *map(_line, events)]))


def _line(event: OpsEvent) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
    reason = f" [{event.reason}]" if event.reason else ""
    return f"{when}  {event.kind:<16} {event.subject:<16} {event.text}{reason}"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
