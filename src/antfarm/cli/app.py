"""The command line as a whole: its groups of commands, its global options, its end."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

import antfarm
from antfarm.cli import ask, bench, colony, daemons, doctor, models, nodes, top
from antfarm.cli.output import complain
from antfarm.cli.session import Session
from antfarm.config import Home
from antfarm.errors import AntfarmError, Reason

app = typer.Typer(
    name="antc",
    help="One language model, served by several ordinary hosts together.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (colony, daemons, models, nodes, top, ask, doctor, bench):
    app.add_typer(group.app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"antc {antfarm.__version__}")
        raise typer.Exit


@app.callback()
def everywhere(
    context: typer.Context,
    home: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The colony's folder.  [default: $ANTFARM_HOME or ~/.antfarm]",
            show_default=False,
        ),
    ] = None,
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.ensure_object(Session).home = Home.find(home)


def main() -> None:
    """Run one command. Exits 0, 1 with a reason on stderr, 2 for wrong usage, or 130 for Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    session = Session()
    try:
        app(obj=session)
    except AntfarmError as error:
        complain(error)
    except Exception as error:
        path = _open_error_log(session.home)
        logging.exception("antc %s", antfarm.__version__)
        what = f"{type(error).__name__}: {error}"
        complain(AntfarmError(Reason.INTERNAL, what, hint=f"the traceback is in {path}"))
    sys.exit(1)


def _leave(number: int, _frame: FrameType | None) -> None:
    """End like Ctrl-C does: clean up on the way out."""
    raise SystemExit(128 + number)


def _open_error_log(home: Home) -> Path:
    """The traceback of a mistake of ours goes to a file, not into the reader's face."""
    home.logs.mkdir(parents=True, exist_ok=True)
    path = home.logs / "antc-error.log"
    logging.basicConfig(filename=path, filemode="w", format="%(asctime)s %(message)s", force=True)
    return path
