"""What the commands of `antc bench` share: options, the progress line, the result's way out."""

from __future__ import annotations

import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antfarm.cli.options import within
from antfarm.cli.output import document, note, say
from antfarm.cli.session import home_of
from antfarm.client.disk import absolute_ref

if TYPE_CHECKING:
    from antfarm.bench.colony import Subject
    from antfarm.bench.mix import Spread

PLAIN_EVERY_S = 10.0  # between progress lines where there is no terminal
_SPREAD = re.compile(r"(\d+)(?::(\d+))?")

ModelFile = Annotated[
    str,
    typer.Option(
        metavar="MODEL", help="A GGUF file or catalog name.  [default: a synthetic one]", show_default=False
    ),
]
Shape = Annotated[str, typer.Option(metavar="NAME", help="Of the synthetic model.")]
Quant = Annotated[str, typer.Option(metavar="TYPE", help="Of the synthetic model.")]
Hosts = Annotated[int, typer.Option(metavar="N", callback=within(1), help="Foragers, one core each.")]
Rounds = Annotated[
    int, typer.Option(metavar="N", callback=within(1), help="In each, everything has its turn.")
]
Out = Annotated[
    Path | None, typer.Option(metavar="OUT", help="Write OUT.json and OUT.md.", show_default=False)
]
Seed = Annotated[int, typer.Option(metavar="N", help="The same seed asks the same.")]
Lengths = Annotated[str, typer.Option(metavar="LOW:HIGH", help="Drawn evenly from this range.")]
Cancel = Annotated[
    float,
    typer.Option(metavar="X", callback=within(0, 1), help="Share of requests that the client leaves early."),
]


class Ticker:
    """A progress line on stderr: rewritten in place on a terminal, else a new one now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._said = time.monotonic()

    def __call__(self, text: str) -> None:
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1  # a longer line would wrap, and stay
            sys.stderr.write(f"\r\x1b[K{text[:width]}")
            sys.stderr.flush()
        elif time.monotonic() - self._said > PLAIN_EVERY_S:
            self._said = time.monotonic()
            note(text)

    def __enter__(self) -> Ticker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def subject_of(context: typer.Context, model: str, shape: str, quant: str) -> Subject:
    from antfarm.bench.colony import Subject

    return Subject(absolute_ref(model), shape, quant, home_of(context))


def publish(result: Any, page: str, out: Path | None, as_json: bool) -> None:
    """Print a result, as a page or a document; `out` keeps both. It is printed if it can't be kept, too."""
    try:
        if out:
            _keep(result, page, out.with_suffix("") if out.suffix in (".json", ".md") else out)
    finally:
        document(result) if as_json else say(page)


def _keep(result: Any, page: str, out: Path) -> None:
    import msgspec

    document, text = out.with_name(f"{out.name}.json"), out.with_name(f"{out.name}.md")
    out.parent.mkdir(parents=True, exist_ok=True)
    document.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    text.write_text(page)
    note(f"wrote {document} and {text}")


def parse_spread(text: str) -> Spread:
    """ "64:256", or "64" for one length."""
    from antfarm.bench.mix import Spread

    found = _SPREAD.fullmatch(text)
    lo, hi = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= lo <= hi:
        raise typer.BadParameter(f"{text!r} is not a range of lengths such as 64:256")
    return Spread(lo, hi)
