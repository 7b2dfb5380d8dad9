"""Options that several commands share, and the reading of their values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from antfarm.types import WireFormat

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)

Json = Annotated[bool, typer.Option("--json", help="Print a JSON document instead of a table.")]

Listen = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address of the API and the bus; 0.0.0.0 takes other hosts in.")
]
ApiPort = Annotated[
    int, typer.Option(metavar="PORT", min=0, max=65535, help="Of the API; 0 takes any free one.")
]
BusPort = Annotated[
    int, typer.Option(metavar="PORT", min=0, max=65535, help="Of the bus; 0 takes any free one.")
]
ApiKey = Annotated[
    str,
    typer.Option(
        envvar="ANTFARM_API_KEY",
        metavar="KEY",
        show_envvar=False,
        show_default=False,
        help="Ask clients of the API for this key; it is kept in the home. Better given as $ANTFARM_API_KEY.",
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        metavar="SIZE", help="A forager's, such as 400MiB.  [default: what is free]", show_default=False
    ),
]

Ref = Annotated[str, typer.Argument(help="A catalog name, a path, http(s)://... or hf:owner/repo/file.gguf.")]
Name = Annotated[str, typer.Argument(help="The name it is served under.")]
Split = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, max=1024, show_default=False, help="Shards.  [default: the fewest that fit]"
    ),
]
Mode = Annotated[str, typer.Option(metavar="MODE", help="auto, tensor, pipeline or hybrid.")]
Stages = Annotated[int, typer.Option(metavar="N", min=0, show_default=False, help="Stages of a hybrid.")]
Shares = Annotated[
    str, typer.Option(metavar="2,1,...", show_default=False, help="Relative sizes of the shards.")
]

Context = Annotated[
    int,
    typer.Option(
        "--context", metavar="N", min=0, show_default=False, help="Tokens a slot.  [default: the model's own]"
    ),
]
Slots = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, show_default=False, help="Answers at once.  [default: 4, or what fits in memory]"
    ),
]
KvType = Annotated[str, typer.Option(metavar="TYPE", help="Of the KV cache: f16, f32 or q8_0.")]


def parse_size(text: str) -> int:
    """ "400MiB", "1.5G", "300000000" as bytes; no text is 0. Decimal units are taken as binary ones."""
    found = _SIZE.fullmatch(text.strip() or "0")
    if not found:
        raise typer.BadParameter(f"{text!r} is not a size; write 400MiB, 2GiB or a number of bytes")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def parse_numbers(text: str) -> tuple[int, ...]:
    """ "0,1" as (0, 1)."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise typer.BadParameter(f"{text!r} is not a list such as 0,1")
    return tuple(int(word) for word in words)


def parse_shares(text: str) -> tuple[float, ...]:
    """ "2,1" as (2.0, 1.0)."""
    try:
        shares = tuple(float(word) for word in text.split(",") if word.strip())
    except ValueError:
        shares = (-1.0,)
    if not all(0 < share < float("inf") for share in shares):
        raise typer.BadParameter(f"--shares takes positive numbers such as 2,1, not {text!r}")
    return shares


def parse_wire(text: str) -> WireFormat:
    from antfarm.types import WireFormat

    if text not in list(WireFormat):
        raise typer.BadParameter(f"--wire is one of {', '.join(WireFormat)}, not {text!r}")
    return WireFormat(text)


def file_path(path: Path | None) -> str:
    """An absolute path for a process that may run elsewhere; empty for none."""
    return str(path.absolute()) if path else ""


def absolute_ref(model: str) -> str:
    """A file that is here by its absolute path, since daemons run elsewhere; other references as they are."""
    path = Path(model).expanduser()
    return str(path.absolute()) if path.is_file() else model
