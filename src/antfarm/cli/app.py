"""The command line as a whole: its groups of commands, its global options, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import antfarm
from antfarm.cli import ask, bench, colony, daemons, doctor, models, nodes, top
from antfarm.cli.output import complain, say
from antfarm.cli.session import Session
from antfarm.client.disk import private, usable
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


class Command(TyperCommand):
    """Usage as manuals write it: what is not in brackets is needed, without more marks. `--home` is taken
    after the command, too."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)
        for argument in (param for param in params if param.param_type_name == "argument"):
            argument.display_type_rich = _no_type
        return params + [param for param in ctx.find_root().command.params if param.name == "home"]

    def invoke(self, ctx: Any) -> Any:
        if given := ctx.params.pop("home"):
            ctx.obj.given = given
        return super().invoke(ctx)


def _no_type(**_: object) -> None:
    """The name says it."""


def _dress(group: typer.Typer) -> None:
    for command in group.registered_commands:
        command.cls = Command
    for inner in group.registered_groups:
        if inner.typer_instance:
            _dress(inner.typer_instance)


for group in (colony, daemons, models, nodes, top, ask, doctor, bench):
    app.add_typer(group.app)
_dress(app)


def _version(asked: bool) -> None:
    if asked:
        say(f"antc {antfarm.__version__}")
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
    context.ensure_object(Session).given = home


def run() -> None:
    """Run one command. Exits 0, 1 with a reason on stderr, 2 for wrong usage, or 130 for Ctrl-C."""
    _open_closed_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    session = Session()
    try:
        with typed(session):
            app(obj=session, prog_name="antc")
    except KeyboardInterrupt:
        sys.exit(130)
    except AntfarmError as error:
        complain(error)
    except Exception as error:  # noqa: BLE001 - it is written down, whole
        complain(_mistake(session.home, error))
    sys.exit(1)


@contextlib.contextmanager
def typed(session: Session) -> Iterator[None]:
    """What the disk refuses, with the home that the command turned out to be about."""
    try:
        yield
    except OSError as error:
        with usable(session.home):
            raise error


def _leave(number: int, _frame: FrameType | None) -> None:
    """End like Ctrl-C does: clean up on the way out."""
    raise SystemExit(128 + number)


def _open_closed_streams() -> None:
    """A standard stream that is closed (`>&-`) would lend its number to the next file that is opened."""
    for number, mode, name in ((0, "r", "stdin"), (1, "w", "stdout"), (2, "w", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - as long as we run


def _mistake(home: Home, error: Exception) -> AntfarmError:
    """The traceback of a mistake of ours goes to a file, not into the reader's face, if it can."""
    path = home.logs / "antc-error.log"
    try:
        home.make()
        home.logs.mkdir(exist_ok=True, mode=0o700)
        with open(path, "w", opener=private) as log:
            traceback.print_exception(error, file=log)
        hint = f"the traceback is in {path}"
    except OSError as refused:
        hint = f"its traceback could not be kept: {refused}"
    return AntfarmError(Reason.INTERNAL, f"{type(error).__name__}: {error}", hint=hint)
