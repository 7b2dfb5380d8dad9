"""Benchmarks: `antc bench split`, `serve`, `batch` and `soak`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from antfarm.cli.benching import (
    Cancel,
    Hosts,
    Lengths,
    ModelFile,
    Out,
    Quant,
    Rounds,
    Seed,
    Shape,
    Ticker,
    parse_spread,
    publish,
    subject_of,
)
from antfarm.cli.options import Json, Wire, parse_wire, within
from antfarm.cli.output import note
from antfarm.cli.session import home_of

app = typer.Typer()
bench = typer.Typer(help="Measure, as ratios taken side by side in one run.", no_args_is_help=True)
app.add_typer(bench, name="bench")


@bench.command()
def split(
    context: typer.Context,
    model: ModelFile = "",
    shape: Shape = "llama-1b",
    quant: Quant = "q4_0",
    hosts: Hosts = 2,
    prompt: Annotated[int, typer.Option(metavar="N", callback=within(2), help="Tokens.")] = 128,
    answer: Annotated[int, typer.Option(metavar="N", callback=within(2), help="Tokens.")] = 64,
    rounds: Rounds = 5,
    wire: Wire = "f32",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Unsplit, tensor-split and pipeline-split, on this machine.

    One core a forager, in a private colony. Prints tokens/s, ratios and bytes on the wire.
    """
    from antfarm.bench.report import split_page
    from antfarm.bench.split import SplitBench, run

    subject = subject_of(context, model, shape, quant)
    result = run(SplitBench(subject, hosts, prompt, answer, rounds, parse_wire(wire)), note)
    publish(result, split_page(result), out, as_json)


@bench.command()
def serve(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Such as http://host:port/v1.  [default: this home's colony]",
            show_default=False,
        ),
    ] = "",
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            metavar="FILE",
            help="Holds the key.  [default: $OPENAI_API_KEY, or the home's]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="[default: the only one]", show_default=False)
    ] = "",
    streams: Annotated[int, typer.Option(metavar="N", callback=within(1, 1024), help="Clients at once.")] = 8,
    requests: Annotated[
        int,
        typer.Option(
            metavar="N",
            callback=within(0),
            show_default=False,
            help="In all; with turns, conversations.  [default: 4 a stream, or what fits]",
        ),
    ] = 0,
    prompt_tokens: Lengths = "64:256",
    answer_tokens: Lengths = "32:128",
    duration: Annotated[
        float,
        typer.Option(
            metavar="X", callback=within(0), show_default=False, help="Seconds; what runs then is cut off."
        ),
    ] = 0.0,
    cancel: Cancel = 0.0,
    chat_turns: Annotated[
        int,
        typer.Option(
            metavar="N",
            callback=within(0),
            help="Turns of a conversation; 0 asks for plain completions of token ids.",
        ),
    ] = 0,
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Many streams at once, against any OpenAI endpoint.

    Prints total tokens/s, time to first token, time between tokens, and errors. Ctrl-C ends the load; what
    was measured until then is printed.
    """
    import asyncio

    from antfarm.bench.mix import Mix
    from antfarm.bench.report import serve_page
    from antfarm.bench.serve import LONGEST_S, ServeBench, run
    from antfarm.client.answers import api_of, key_in

    mix = Mix(parse_spread(prompt_tokens), parse_spread(answer_tokens), cancel, chat_turns, seed)
    key = os.environ.get("OPENAI_API_KEY", "")
    if not url:
        url, key = api_of(home_of(context))
    if api_key_file:
        key = key_in(api_key_file)
    requests = requests or (0 if duration else 4 * streams)
    asked = ServeBench(url, mix, key, model, streams, requests, duration or LONGEST_S)
    with Ticker() as tick:
        result = asyncio.run(run(asked, tick))
    publish(result, serve_page(result), out, as_json)
    if result.interrupted:
        raise typer.Exit(130)
    if not result.traffic.answered and not result.traffic.cut:
        raise typer.Exit(1)


@bench.command()
def batch(
    context: typer.Context,
    model: ModelFile = "",
    shape: Shape = "llama-1b",
    quant: Quant = "q4_0",
    hosts: Hosts = 2,
    streams: Annotated[int, typer.Option(metavar="N", callback=within(2), help="Clients at once.")] = 8,
    prompt: Annotated[int, typer.Option(metavar="N", callback=within(1), help="Tokens.")] = 16,
    answer: Annotated[int, typer.Option(metavar="N", callback=within(2), help="Tokens.")] = 256,
    disturbed: Annotated[
        int, typer.Option(metavar="N", callback=within(1), help="Streams that decode during a long prompt.")
    ] = 4,
    long_prompt: Annotated[int, typer.Option(metavar="N", callback=within(16), help="Tokens.")] = 2000,
    history: Annotated[
        int, typer.Option(metavar="N", callback=within(16), help="Tokens of a chat's first turn.")
    ] = 1000,
    rounds: Rounds = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help="streams, disturbance, prompt or chat; may be repeated."),
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """What company does to an answer, unsplit and split.

    Many streams, a long prompt, a chat's second turn. One core a forager, in a private colony.
    """
    from antfarm.bench.batch import SCENARIOS, run
    from antfarm.bench.lab import BatchBench
    from antfarm.bench.report import batch_page

    if unknown := set(only or ()) - set(SCENARIOS):
        raise typer.BadParameter(f"--only is one of {', '.join(SCENARIOS)}, not {', '.join(sorted(unknown))}")
    asked = BatchBench(
        subject=subject_of(context, model, shape, quant),
        hosts=hosts,
        streams=streams,
        prompt=prompt,
        answer=answer,
        disturbed=disturbed,
        long_prompt=long_prompt,
        history=history,
        rounds=rounds,
        scenarios=tuple(dict.fromkeys(only or ())),
    )
    result = run(asked, note)
    publish(result, batch_page(result), out, as_json)


@bench.command()
def soak(
    context: typer.Context,
    model: ModelFile = "",
    shape: Shape = "tiny-llama",
    quant: Quant = "q8_0",
    hosts: Hosts = 2,
    minutes: Annotated[float, typer.Option(metavar="X", callback=within(0.1))] = 10.0,
    clients: Annotated[int, typer.Option(metavar="N", callback=within(3))] = 16,
    slots: Annotated[int, typer.Option(metavar="N", callback=within(1), help="Of each split.")] = 4,
    prompt_tokens: Lengths = "1:300",
    answer_tokens: Lengths = "1:200",
    cancel: Cancel = 0.2,
    growth: Annotated[
        float, typer.Option(metavar="X", callback=within(0), help="Of a process's memory after warm-up.")
    ] = 0.02,
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Clients that ask, wait and leave at random, for a while.

    Exits 1 when a request failed, a slot was lost, a process ended or memory grew.
    """
    from antfarm.bench.report import soak_page
    from antfarm.bench.soak import SoakBench, run

    prompts, answers = parse_spread(prompt_tokens), parse_spread(answer_tokens)
    asked = SoakBench(
        subject=subject_of(context, model, shape, quant),
        hosts=hosts,
        clients=clients,
        seconds=minutes * 60,
        slots=slots,
        prompt=prompts,
        answer=answers,
        cancel=cancel,
        growth=growth,
        seed=seed,
    )
    with Ticker() as tick:
        result = run(asked, note, tick)
    publish(result, soak_page(result), out, as_json)
    if not result.passed:
        raise typer.Exit(1)
