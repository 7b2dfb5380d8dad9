"""Options that several commands share, and the reading of their values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from antfarm.client.disk import absolute_ref
from antfarm.types import RunOptions, SplitMode, WireFormat

if TYPE_CHECKING:
    from antfarm.messages import LoadModel

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)

T = TypeVar("T", int, float)


def within(least: float, most: float = math.inf) -> Callable[[T | None], T | None]:
    """A check of an option's number, as its callback; help stays free of inequalities."""

    def check(value: T | None) -> T | None:
        if value is not None and not least <= value <= most:
            text = f"at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
            raise typer.BadParameter(f"{value} is not {text}")
        return value

    return check


def one_of(*choices: str) -> Callable[[str], str]:
    """A check of an option's word, as its callback."""

    def check(value: str) -> str:
        if value not in choices:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}")
        return value

    return check


def share_of_one(value: float) -> float:
    """A check that an option's number is above 0 and at most 1, as its callback."""
    if not 0 < value <= 1:
        raise typer.BadParameter(f"{value} is not above 0 and at most 1")
    return value


Json = Annotated[bool, typer.Option("--json", help="Print a JSON document instead of a table.")]

Listen = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address of the API and the bus; 0.0.0.0 takes other hosts in.")
]
ApiPort = Annotated[
    int, typer.Option(metavar="PORT", callback=within(0, 65535), help="Of the API; 0 takes any free one.")
]
BusPort = Annotated[
    int, typer.Option(metavar="PORT", callback=within(0, 65535), help="Of the bus; 0 takes any free one.")
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
NoApiKey = Annotated[
    bool, typer.Option("--no-api-key", help="Ask for no key, and forget the one that is kept in the home.")
]
Memory = Annotated[
    str,
    typer.Option(
        metavar="SIZE", help="A forager's, such as 400MiB.  [default: what is free]", show_default=False
    ),
]

Ref = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A catalog name, a path, http(s)://... or hf:owner/repo/file.gguf."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name it is served under.")]
ServedName = Annotated[
    str, typer.Option(metavar="NAME", help="To serve it under.  [default: the file's]", show_default=False)
]
Split = Annotated[
    int,
    typer.Option(
        metavar="N",
        callback=within(0, 1024),
        show_default=False,
        help="Shards.  [default: the fewest that fit]",
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        metavar="MODE", help="auto, tensor, pipeline or hybrid.", callback=one_of("auto", *SplitMode)
    ),
]
Stages = Annotated[
    int, typer.Option(metavar="N", callback=within(0), show_default=False, help="Stages of a hybrid.")
]
Shares = Annotated[
    str, typer.Option(metavar="2,1,...", show_default=False, help="Relative sizes of the shards.")
]

Context = Annotated[
    int,
    typer.Option(
        "--context",
        metavar="N",
        callback=within(0),
        show_default=False,
        help="Tokens a slot.  [default: the model's own up to 4096, or what fits]",
    ),
]
Slots = Annotated[
    int,
    typer.Option(
        metavar="N",
        callback=within(0),
        show_default=False,
        help="Answers at once.  [default: 4, or what fits in memory]",
    ),
]
Queue = Annotated[
    int,
    typer.Option(metavar="N", callback=within(0), help="Tasks that may wait for a slot."),
]
PrefillShare = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        callback=share_of_one,
        help="Of the time, for reading prompts while answers go on; above 0, at most 1.",
    ),
]
Wire = Annotated[str, typer.Option(metavar="FORMAT", help="Numbers between shards: f32, f16 or q8.")]
KvType = Annotated[
    str,
    typer.Option(
        metavar="TYPE", help="Of the KV cache: f16, f32 or q8_0.", callback=one_of("f16", "f32", "q8_0")
    ),
]


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
    if text not in list(WireFormat):
        raise typer.BadParameter(f"--wire is one of {', '.join(WireFormat)}, not {text!r}")
    return WireFormat(text)


def file_path(path: Path | None) -> str:
    """An absolute path for a process that may run elsewhere; empty for none."""
    return str(path.absolute()) if path else ""


def load_request(
    model: str,
    *,
    name: str,
    split: int,
    mode: str,
    stages: int,
    shares: str,
    context: int,
    slots: int,
    queue: int,
    prefill_share: float,
    kv_type: str,
    wire: str = "f32",
    backend: str = "CPU",
    replicas: int = 1,
) -> LoadModel:
    """What the queen is asked to load, from the values of a command's options."""
    from antfarm.messages import LoadModel

    return LoadModel(
        absolute_ref(model),
        name=name,
        split=split,
        mode=mode,
        stages=stages,
        shares=parse_shares(shares),
        options=RunOptions(
            context=context,
            slots=slots,
            queue=queue,
            prefill_share=prefill_share,
            wire=parse_wire(wire),
            kv_type=kv_type,
            backend=backend,
        ),
        replicas=replicas,
    )
