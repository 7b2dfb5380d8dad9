"""`antc top`: the colony at work, live in a terminal or once for scripts."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from antfarm.cli.options import Json
from antfarm.cli.output import document, note, show
from antfarm.cli.session import home_of, with_control

app = typer.Typer()


@app.command()
def top(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print what two seconds show, and leave.")] = False,
    as_json: Json = False,
) -> None:
    """Watch models and shards at work.

    Refreshes every second; q or Ctrl-C leaves. Without a terminal, and with --json, it prints once.
    """
    from rich.console import Console

    from antfarm.cli.live import draw, look, watch

    home = home_of(context)
    if not (once or as_json) and sys.stdout.isatty() and not Console().is_dumb_terminal:
        with contextlib.suppress(KeyboardInterrupt):
            with_control(home, watch)
        return
    seen = with_control(home, look)
    if as_json:
        document(seen)
        return
    show(draw(seen))
    if not seen.models:
        note("no model is loaded; `antc load MODEL` loads one")
