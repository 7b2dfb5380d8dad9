"""Models: on this disk (`antc pull`, `models`) and in the colony (`load`, `unload`, `shard`, `ps`)."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from antfarm.cli.loading import how_split, load_or_unload, pull_and_show, reshard_and_watch
from antfarm.cli.options import (
    Context,
    Json,
    KvType,
    Mode,
    Name,
    PrefillShare,
    Queue,
    Ref,
    ServedName,
    Shares,
    Slots,
    Split,
    Stages,
    Wire,
    load_request,
    parse_shares,
    within,
)
from antfarm.cli.output import document, note, say, size, table
from antfarm.cli.session import home_of, with_control
from antfarm.errors import ModelError

if TYPE_CHECKING:
    from antfarm.config import Home
    from antfarm.messages import Failure, ModelStatus
    from antfarm.model.catalog import Catalog, Entry

app = typer.Typer()


@app.command()
def pull(context: typer.Context, model: Ref) -> None:
    """Fetch a model to this host.

    Its checksum is verified; an interrupted download goes on where it stopped.
    """
    say(str(pull_and_show(home_of(context), model)))


@app.command()
def models(context: typer.Context, as_json: Json = False) -> None:
    """Show the catalog, this host's files and what is loaded."""
    from antfarm.model.catalog import Catalog

    home = home_of(context)
    catalog = Catalog(home.models)
    rows = {entry.name: _known(entry) for entry in catalog.entries()}
    for file in catalog.installed():
        row = rows.get(file.name, ModelRow(file.name))
        rows[file.name] = msgspec.structs.replace(row, bytes=file.bytes, path=str(file.path))
    for status in _loaded(home):
        row = rows.get(status.model, ModelRow(status.model, path=_here(catalog, status.source)))
        if row.state != "ready":  # of replicas, the best counts
            rows[status.model] = msgspec.structs.replace(row, state=status.state)
    if as_json:
        document(list(rows.values()))
        return
    table(
        ("MODEL", "SIZE", "HERE", "STATE", "LICENSE", "TITLE"),
        (
            (
                row.model,
                size(row.bytes) if row.bytes else "",
                "yes" if row.path else "",
                row.state,
                row.license,
                row.title,
            )
            for row in rows.values()
        ),
    )


class ModelRow(msgspec.Struct, frozen=True):
    """A model in `antc models`: known, on this disk, loaded, or all of these."""

    model: str
    title: str = ""
    license: str = ""  # of its weights, where the catalog knows it
    bytes: int = 0
    path: str = ""  # on this host
    state: str = ""  # in the colony, when loaded


def _known(entry: Entry) -> ModelRow:
    return ModelRow(entry.name, entry.title, entry.license, entry.source.bytes)


def _here(catalog: Catalog, source: str) -> str:
    """The file of what was loaded, if this host has it: foragers elsewhere may have fetched it."""
    with suppress(ModelError):
        return str(catalog.resolve(source))
    return ""


def newest_failures(loaded: Collection[ModelStatus]) -> dict[str, Failure]:
    """What kept or ended each model that failed; of several failures the last. A new split that failed
    beside a replica that serves is no news."""
    serving = {one.replica for one in loaded if one.state == "ready"}
    told = [one for one in loaded if one.state != "failed" or one.replica not in serving]
    by_age = sorted(told, key=lambda one: one.created)
    return {status.model: status.failure for status in by_age if status.failure}


def _loaded(home: Home) -> tuple[ModelStatus, ...]:
    """What the colony has loaded; nothing where none runs."""
    from antfarm.client import state

    if not state.read(home).on_bus():
        return ()
    return with_control(home, lambda control: control.models())


@app.command()
def load(
    context: typer.Context,
    model: Ref,
    name: ServedName = "",
    split: Split = 0,
    mode: Mode = "auto",
    stages: Stages = 0,
    shares: Shares = "",
    replicas: Annotated[
        int, typer.Option(metavar="N", callback=within(1), help="Each on foragers of its own.")
    ] = 1,
    context_length: Context = 0,
    slots: Slots = 0,
    kv_type: KvType = "f16",
    queue: Queue = 256,
    prefill_share: PrefillShare = 0.5,
    wire: Wire = "f32",
    backend: Annotated[str, typer.Option(metavar="NAME", help="The ggml device to compute on.")] = "CPU",
) -> None:
    """Load a model into the colony.

    Returns when a token has passed through all its shards. Ctrl-C before that unloads it again.
    """
    wanted = load_request(
        model,
        name=name,
        split=split,
        mode=mode,
        stages=stages,
        shares=shares,
        context=context_length,
        slots=slots,
        queue=queue,
        prefill_share=prefill_share,
        kv_type=kv_type,
        wire=wire,
        backend=backend,
        replicas=replicas,
    )
    with_control(home_of(context), lambda control: load_or_unload(control, wanted))


@app.command()
def unload(context: typer.Context, model: Name) -> None:
    """Take a model out of the colony."""
    with_control(home_of(context), lambda control: control.unload(model))
    say(f"{model} is unloaded")


@app.command()
def shard(
    context: typer.Context,
    model: Name,
    split: Split = 0,
    mode: Mode = "auto",
    stages: Stages = 0,
    shares: Shares = "",
) -> None:
    """Change a loaded model's split.

    Replicas are changed one after the other, lost ones first, so that the others serve meanwhile.
    Ctrl-C ends the watching only: the queen goes on.
    """
    from antfarm.messages import LoadModel

    wanted = LoadModel(
        model, split=split, mode=mode, stages=stages, shares=parse_shares(shares), reshard=True
    )
    with_control(home_of(context), lambda control: reshard_and_watch(control, wanted))


@app.command()
def ps(context: typer.Context, as_json: Json = False) -> None:
    """Show loaded models and where their shards are."""
    loaded = with_control(home_of(context), lambda control: control.models())
    if as_json:
        document(loaded)
        return
    table(
        (
            "MODEL",
            "REPLICA",
            "STATE",
            "SPLIT",
            "CONTEXT",
            "SLOTS",
            "SHARD",
            "FORAGER",
            "PART",
            "SHARD STATE",
            "PLANNED",
            "RESIDENT",
        ),
        (
            (
                model.model,
                model.replica,
                model.state,
                how_split(model),
                str(model.context),
                str(model.slots),
                str(view.shard),
                view.forager,
                view.part,
                view.state,
                size(view.planned),
                size(view.resident),
            )
            for model in loaded
            for view in model.shards
        ),
    )
    for name, failure in newest_failures(loaded).items():
        note(f"{name}: {failure.reason}: {failure.message}")
    if not loaded:
        note("no model is loaded; `antc load MODEL` loads one")
