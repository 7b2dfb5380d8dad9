"""Loading again: what is kept of what was asked before, and what becomes of what is no more."""

from __future__ import annotations

from typing import Any

import pytest
from support.colony_script import BROKEN, Script, forager, kinds
from support.models import Models

from antfarm.colony import names
from antfarm.colony.events import (
    Broke,
    Described,
    ForagerHeard,
    ForagerLeft,
    Instruction,
    LoadAsked,
    LogOps,
    SendLoad,
    ShardHeard,
    UnloadAsked,
)
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import Failure, LoadModel, ShardFailed
from antfarm.model.gguf import GgufFile
from antfarm.types import RunOptions


@pytest.fixture
def script(models: Models) -> Script:
    with GgufFile.open(models.path("tiny-llama")) as file:
        made = Script(file.facts)
    made.joins("a", "b", "c")
    return made


def lose(script: Script, shard: int = 0, epoch: int = 1) -> None:
    script.on(ShardHeard(ShardFailed("m-1", epoch, shard, BROKEN)))
    assert script.status().state == "unavailable"


def texts(instructions: list[Instruction]) -> str:
    return " ".join(one.text for one in instructions if isinstance(one, LogOps))


def asked(script: Script) -> LoadModel:
    view = script.colony.models()[0].view
    assert view
    return view.ask


@pytest.mark.parametrize("again", [{}, {"reshard": True}])
def test_a_lost_model_comes_back_as_it_was(script: Script, again: dict[str, Any]) -> None:
    options = RunOptions(context=64)
    script.ready(split=2, mode="pipeline", shares=(2.0, 1.0), options=options)
    lose(script)
    loads = script.loads(epoch=2, **again)
    assert len([one for one in loads if isinstance(one, SendLoad)]) == 2
    ask = asked(script)
    assert (ask.split, ask.mode, ask.shares, ask.options) == (2, "pipeline", (2.0, 1.0), options)


@pytest.mark.parametrize(
    ("again", "shape"),
    [
        ({"split": 3}, (3, "auto", ())),
        ({"shares": (1.0, 3.0)}, (0, "auto", (1.0, 3.0))),
        ({"mode": "tensor"}, (2, "tensor", ())),
    ],
)
def test_what_is_given_anew_counts(script: Script, again: dict[str, Any], shape: tuple[Any, ...]) -> None:
    script.ready(split=2, mode="pipeline")
    lose(script)
    script.loads(epoch=2, reshard=True, **again)
    ask = asked(script)
    assert (ask.split, ask.mode, ask.shares) == shape


def test_without_its_foragers_it_comes_back_on_those_that_are_there(script: Script) -> None:
    script.ready(split=3, mode="pipeline")
    script.on(ForagerLeft("c"))
    assert script.status().state == "unavailable"
    script.becomes_ready(script.loads(epoch=2, reshard=True))
    assert script.status().state == "ready"


def test_replicas_come_back_too(script: Script) -> None:
    script.becomes_ready(script.loads(replicas=2))
    for replica in ("m-1", "m-2"):
        script.on(ShardHeard(ShardFailed(replica, 1, 0, BROKEN)))
    script.loads(epoch=2)
    assert len(script.colony.models()[0].seats) == 2


def test_another_file_or_a_load_that_failed_is_asked_as_it_stands(script: Script) -> None:
    script.ready(split=2)
    lose(script)
    script.on(LoadAsked("m", LoadModel("another")))
    assert asked(script).split == 0
    script.on(LoadAsked("n", LoadModel("file", split=9)))
    script.on(Described("n-1", 3, "a", script.facts))
    assert script.status("n").state == "failed"
    script.on(LoadAsked("n", LoadModel("file")))
    assert script.status("n").state == "loading"


def test_shards_of_an_ended_replica_hold_nothing(script: Script) -> None:
    script.ready(split=2)
    for shard in script.colony.models()[0].replicas()[0].shards:
        shard.resident = 213 << 20
    lose(script, shard=1)
    assert [(view.state, view.resident) for view in script.status().shards] == [("ended", 0)] * 2


def test_loads_that_failed_do_not_pile_up_and_are_not_offered(script: Script) -> None:
    script.ready()
    for number in range(names.FAILED_NAMES + 3):
        script.on(LoadAsked(f"x{number}", LoadModel("file", split=9)))
        script.on(Described(f"x{number}-1", number + 2, "a", script.facts))
    known = [model.name for model in script.colony.models()]
    assert known == ["m", *(f"x{number}" for number in range(3, names.FAILED_NAMES + 3))]
    assert "loaded: m" in script.refusal("never").hint
    assert "x5" not in script.refusal("never").hint
    assert [model.name for model in script.colony.loaded()] == ["m"]


def test_a_load_that_failed_is_forgotten_and_never_called_unloaded(script: Script) -> None:
    script.on(LoadAsked("x", LoadModel("file", split=9)))
    script.on(Described("x-1", 1, "a", script.facts))
    with pytest.raises(AntfarmError) as caught:
        script.on(UnloadAsked("x"))
    assert caught.value.reason is Reason.MODEL_UNKNOWN
    assert script.colony.models() == []
    assert script.refusal("x").reason is Reason.MODEL_UNKNOWN


def test_the_unforeseen_fails_the_replica_and_frees_the_name(script: Script) -> None:
    internal = Failure(Reason.INTERNAL, "KeyError: 'surprise'")
    script.on(LoadAsked("m", LoadModel("file", replicas=2)))
    assert kinds(script.on(Broke("m-1", 1, internal))) == ["model-failed", "model-failed"]
    assert script.refusal().reason is Reason.INTERNAL
    script.becomes_ready(script.loads(epoch=2))
    assert script.on(Broke("m-1", 2, internal)) == []
    assert script.status().state == "ready"


def test_foragers_that_share_cores_are_told_so(script: Script) -> None:
    first, second = (forager(id, host="one", cores=2, threads=2) for id in ("x", "y"))
    assert "--threads" not in texts(script.on(ForagerHeard(first)))
    assert "with x it has 4 threads" in texts(script.on(ForagerHeard(second)))
    assert texts(script.on(ForagerHeard(second))) == ""


@pytest.mark.parametrize(
    "ask",
    [
        {"mode": "tensor", "stages": 2},
        {"mode": "pipeline", "stages": 1},
        {"mode": "hybrid", "stages": 1},
        {"shares": (1.0, float("inf"))},
        {"shares": (1.0, float("nan"))},
    ],
)
def test_what_can_not_be_meant_is_refused(script: Script, ask: dict[str, Any]) -> None:
    with pytest.raises(AntfarmError) as caught:
        script.on(LoadAsked("m", LoadModel("file", **ask)))
    assert caught.value.reason is Reason.INVALID_REQUEST
