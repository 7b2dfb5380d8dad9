"""What commands print: tables for people, documents for scripts, errors on stderr. Rich is loaded late."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from antfarm.errors import AntfarmError, Reason, StateError

if TYPE_CHECKING:
    from rich.console import RenderableType

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
WIDE = 1000  # columns; more than any table has


def say(text: str = "") -> None:
    put(text + "\n")


def put(text: str) -> None:
    """To stdout at once."""
    with _writable():
        sys.stdout.write(text)
        sys.stdout.flush()


@contextmanager
def _writable() -> Iterator[None]:
    """Raises `StateError` `bad-setting` when stdout can't be written, as to a full disk."""
    try:
        yield
    except BrokenPipeError:
        raise  # a reader that has seen enough, as `head` does, is no error
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is buffered goes there when we end
        raise StateError(Reason.BAD_SETTING, f"stdout can't be written: {error.strerror}") from error


def note(text: str) -> None:
    """To stderr, so that stdout stays an answer or a document."""
    typer.echo(text, err=True)


def complain(error: AntfarmError) -> None:
    note(f"antc: {error.reason}: {error.message}")
    if error.hint:
        note(f"      {error.hint}")


def document(value: Any) -> None:
    """`value`, of msgspec structs and plain Python, as indented JSON."""
    import msgspec

    say(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Aligned columns under bold headings."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*map(Text, row))
    show(grid)


def show(drawn: RenderableType) -> None:
    """To stdout, whole: a narrower terminal wraps the lines; squeezed, cells would lose their ends."""
    from rich.console import Console

    console = Console(width=WIDE)
    with _writable():
        console.print(drawn)


def size(count: float) -> str:
    """Bytes for people: "592 MiB"."""
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
