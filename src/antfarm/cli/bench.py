"""Benchmarks: `antc bench split`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antfarm.cli.options import Json, absolute_ref, parse_wire
from antfarm.cli.output import document, note, say

app = typer.Typer()
bench = typer.Typer(help="Measure, as ratios taken side by side in one run.", no_args_is_help=True)
app.add_typer(bench, name="bench")


@bench.command()
def split(
    model: Annotated[str, typer.Option(help="A GGUF file or catalog name.  [default: a synthetic one]")] = "",
    shape: Annotated[str, typer.Option(help="Of the synthetic model.")] = "llama-1b",
    quant: Annotated[str, typer.Option(help="Of the synthetic model.")] = "q4_0",
    hosts: Annotated[int, typer.Option(min=1, help="Foragers, one core each.")] = 2,
    prompt: Annotated[int, typer.Option(min=2, help="Tokens.")] = 128,
    answer: Annotated[int, typer.Option(min=2, help="Tokens.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="In each, every split has its turn.")] = 5,
    wire: Annotated[str, typer.Option(help="Numbers between shards: f32, f16 or q8.")] = "f32",
    out: Annotated[Path | None, typer.Option(help="Write OUT.json and OUT.md.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Unsplit, tensor-split and pipeline-split, on this machine.

    One core a forager, in a private colony. Prints tokens/s, ratios and bytes on the wire.
    """
    import msgspec

    from antfarm.bench.report import markdown
    from antfarm.bench.split import SplitBench, run

    asked = SplitBench(absolute_ref(model), shape, quant, hosts, prompt, answer, rounds, parse_wire(wire))
    result = run(asked, note)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        out.with_suffix(".md").write_text(markdown(result))
        note(f"wrote {out.with_suffix('.json')} and {out.with_suffix('.md')}")
    if as_json:
        document(result)
    else:
        say(markdown(result))
