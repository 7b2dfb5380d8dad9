"""What `antc doctor` finds wrong, in words that say what to do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

import antfarm
from antfarm.cli import doctor
from antfarm.cli.doctor import Finding, examine
from antfarm.client import state
from antfarm.config import Home
from antfarm.engine import features
from antfarm.messages import Failure, ForagerFacts, ModelStatus

FIT = ForagerFacts(
    "fit", "host", "10.0.0.5", 2, 1, 1 << 30, ("CPU",), ("LLAMAFILE",), antfarm.__version__, 1, 0.0, "m", True
)

BUS = "nats://127.0.0.1:1"


def told(home: Path, check: str) -> list[Finding]:
    """All but what is as it should be."""
    return [found for found in examine(Home(home)) if found.check == check and found.verdict != "ok"]


@pytest.mark.parametrize(
    ("name", "verdict", "advice"),
    [
        ("LLAMAFILE", "wrong", "prompts are read at half speed; remove .venv and run `make setup`"),
        ("REPACK", "odd", "4-bit weights run at half speed here"),
    ],
)
def test_an_engine_that_was_built_without_what_makes_it_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, verdict: str, advice: str
) -> None:
    have = {*features(), "LLAMAFILE", "REPACK"}
    monkeypatch.setattr("antfarm.engine.features", lambda: have)
    assert told(tmp_path, "engine") == []
    have.remove(name)
    (found,) = told(tmp_path, "engine")
    assert (found.verdict, found.text) == (verdict, f"ggml was built without {name}")
    assert found.advice.startswith(advice)


@pytest.mark.parametrize(
    ("name", "constant", "option"), [("API", "API_PORT", "--api-port"), ("bus", "BUS_PORT", "--bus-port")]
)
def test_a_port_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, constant: str, option: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, constant, port)
        (found,) = [one for one in told(tmp_path, "ports") if str(port) in one.text]
        assert (found.verdict, found.text) == ("odd", f"{port} ({name}): Address already in use")
        assert found.advice == f"end what listens there, or choose {option}"
        with state.claim(Home(tmp_path), "queen"):
            assert told(tmp_path, "ports") == [], "a colony has its ports"


def held(
    monkeypatch: pytest.MonkeyPatch, nodes: Sequence[ForagerFacts] = (), models: Sequence[ModelStatus] = ()
) -> None:
    """Let the colony hold these."""

    class Colony:
        async def models(self) -> Sequence[ModelStatus]:
            return models

        async def nodes(self) -> Sequence[ForagerFacts]:
            return nodes

    def with_control(_: Home, work: Callable[[Colony], Awaitable[object]]) -> object:
        async def run() -> object:
            return await work(Colony())

        return asyncio.run(run())

    monkeypatch.setattr(doctor, "with_control", with_control)


def test_foragers_that_are_not_as_the_queen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = msgspec.structs.replace(FIT, id="old", version="0.0.1")
    held(monkeypatch, nodes=[FIT, older, msgspec.structs.replace(FIT, id="slow", features=("AVX2",))])
    with state.claim(Home(tmp_path), "queen") as announce:
        announce(state.Process("queen", "", bus=BUS))
        old, slow = told(tmp_path, "bus")
    assert old == Finding("bus", "wrong", "old runs antfarm 0.0.1", "run one version everywhere")
    assert (slow.verdict, slow.text) == ("odd", "slow's ggml lacks LLAMAFILE")
    assert "`make setup`" in slow.advice


def test_a_forager_of_this_home_that_the_colony_does_not_hear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(monkeypatch, nodes=[FIT])
    home = Home(tmp_path)
    with state.claim(home, "forager", "lost") as announce:
        announce(state.Process("forager", "lost", bus=BUS))
        (lost,) = told(tmp_path, "bus")
        assert lost.verdict == "wrong" and lost.text.startswith("lost runs here, as process ")
        assert str(home.logs) in lost.advice and "`antc forager`" in lost.advice
        held(monkeypatch, nodes=[msgspec.structs.replace(FIT, id="lost")])
        assert told(tmp_path, "bus") == []


def test_models_that_do_not_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(name: str, state: str, failure: Failure | None = None) -> ModelStatus:
        return ModelStatus(name, f"{name}.gguf", state, "tensor", f"{name}-1", 1, 768, 4, (), failure)

    missing = Failure("shard-missing", "c misses shard 1 on f", "`antc shard c` brings it back")
    models = [one("a", "ready"), one("b", "loading"), one("c", "unavailable", missing), one("d", "failed")]
    held(monkeypatch, models=[*models, one("a", "failed", Failure("no-capacity", "no room", "free some"))])
    with state.claim(Home(tmp_path), "queen") as announce:
        announce(state.Process("queen", "", bus=BUS))
        loading, lost, failed, split = told(tmp_path, "model")
    assert (loading.verdict, loading.text) == ("odd", "b (b-1) is loading")
    assert lost == Finding(
        "model", "wrong", "c (c-1) is unavailable: c misses shard 1 on f", "`antc shard c` brings it back"
    )
    assert failed.verdict == "wrong" and "`antc load d.gguf`" in failed.advice
    assert (split.verdict, split.text) == ("odd", "a (a-1) is failed: no room"), "the old split serves"
