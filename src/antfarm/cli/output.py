"""What commands print: tables for people, documents for scripts, errors on stderr. Rich is loaded late."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from antfarm.errors import AntfarmError

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def say(text: str = "") -> None:
    typer.echo(text)


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
    """Aligned columns under bold headings; never cut off when stdout is a pipe."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*map(Text, row))
    console = Console(width=None if sys.stdout.isatty() else 1000)
    console.print(grid)


def size(count: float) -> str:
    """Bytes for people: "592 MiB"."""
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
