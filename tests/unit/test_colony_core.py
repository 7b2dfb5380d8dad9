"""The colony: events in, instructions out, compared as lists."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.colony_script import BROKEN, LIMITS, MEMORY, Script, bound, forager, kinds, statuses
from support.models import Models

from antfarm.colony.events import (
    Broke,
    Describe,
    Described,
    DescribeFailed,
    Drain,
    Drained,
    FailTasks,
    ForagerHeard,
    ForagerLeft,
    Instruction,
    Keep,
    LoadAsked,
    LogOps,
    RequestFailed,
    Route,
    SendLink,
    SendLoad,
    SendStop,
    ShardHeard,
    Tick,
    UnloadAsked,
)
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import (
    Failure,
    LoadModel,
    Peer,
    ReplicaProved,
    ShardFailed,
    ShardLinked,
    ShardLoaded,
    ShardProgress,
)
from antfarm.model.gguf import GgufFile
from antfarm.types import ModelFacts, RunOptions


@pytest.fixture(scope="module")
def facts(models: Models) -> ModelFacts:
    with GgufFile.open(models.path("tiny-llama")) as file:
        return file.facts


@pytest.fixture
def script(facts: ModelFacts) -> Script:
    return Script(facts)


# ---- a load that goes well


def test_a_load_from_asking_to_ready(script: Script) -> None:
    script.joins("a", "b")
    began = script.on(LoadAsked("m", LoadModel("file", split=2)))
    assert began == [LogOps("model-loading", "m", "file was asked for"), Describe("m-1", 1, "a", "file")]
    assert script.refusal().reason is Reason.MODEL_LOADING
    assert script.on(Described("m-1", 1, "a", script.facts)) == [Describe("m-1", 1, "b", "file")]

    loads = script.on(Described("m-1", 1, "b", script.facts))
    assert [(one.forager, one.load.shard) for one in loads if isinstance(one, SendLoad)] == [
        ("a", 0),
        ("b", 1),
    ]
    assert all(one.load.fingerprint == script.facts.fingerprint for one in loads if isinstance(one, SendLoad))

    assert script.told(bound("m-1", 1, 0), bound("m-1", 1, 1)) == []
    assert script.on(ShardHeard(ShardProgress("m-1", 1, 0, 50, 100))) == []
    assert [view.loaded for view in script.status().shards] == [0.5, 0.0]
    assert script.on(ShardHeard(ShardLoaded("m-1", 1, 0, MEMORY, 1.0))) == []
    peers = (Peer(0, "shard 0 on a", "10.0.0.1", 9000), Peer(1, "shard 1 on b", "10.0.0.1", 9001))
    links = script.on(ShardHeard(ShardLoaded("m-1", 1, 1, MEMORY, 1.0)))
    assert [(one.forager, one.link.peers) for one in links if isinstance(one, SendLink)] == [
        ("a", peers),
        ("b", peers),
    ]

    assert script.told(*(ShardHeard(ShardLinked("m-1", 1, i)) for i in (1, 0))) == []
    assert script.status().state == "loading"
    script.now += 3
    proved = script.on(ShardHeard(ReplicaProved("m-1", 1, 0.1)))
    assert proved == [LogOps("model-ready", "m", "m-1 epoch 1 on a, b")]
    assert script.colony.route("m") == Route("m", "m-1", 1, "a", 128)
    assert (script.status().seconds, script.status().mode) == (3.0, "tensor")


def test_a_context_longer_than_trained_for_is_told(script: Script) -> None:
    script.joins("a")
    trained = script.facts.context
    for epoch, context in ((1, trained), (2, trained + 1)):
        loads = script.loads(f"m{epoch}", epoch=epoch, options=RunOptions(context=context))
        (ready,) = script.becomes_ready(loads)
        assert isinstance(ready, LogOps)
        assert (f"more than it was trained for: {trained}" in ready.text) is (context > trained)


def test_events_may_come_in_any_order(script: Script) -> None:
    script.joins("a", "b")
    script.loads(split=2)
    script.told(*(ShardHeard(ShardLoaded("m-1", 1, i, MEMORY, 1.0)) for i in (0, 1)))
    assert kinds(script.told(bound("m-1", 1, 1), bound("m-1", 1, 0))) == ["SendLink", "SendLink"]
    script.on(ShardHeard(ReplicaProved("m-1", 1, 0.1)))
    assert kinds(script.told(*(ShardHeard(ShardLinked("m-1", 1, i)) for i in (0, 1)))) == ["model-ready"]
    assert script.status().state == "ready"


def test_the_fewest_shards_that_fit_and_the_freest_foragers(script: Script) -> None:
    script.joins("a", "b", "c")
    script.ready()
    assert [view.forager for view in script.status().shards] == ["a"]
    second = script.loads("n", epoch=2)
    assert [one.forager for one in second if isinstance(one, SendLoad)] == ["b"]


# ---- what can't begin


@pytest.mark.parametrize(
    ("ask", "name", "reason"),
    [
        ({"mode": "magic"}, "m", Reason.INVALID_REQUEST),
        ({"split": 2, "shares": (1.0,)}, "m", Reason.INVALID_REQUEST),
        ({"shares": (1.0, -1.0)}, "m", Reason.INVALID_REQUEST),
        ({}, "../etc", Reason.INVALID_REQUEST),
        ({"reshard": True}, "m", Reason.MODEL_UNKNOWN),
    ],
)
def test_nonsense_is_refused_and_changes_nothing(
    script: Script, ask: dict[str, Any], name: str, reason: Reason
) -> None:
    script.joins("a")
    with pytest.raises(AntfarmError) as caught:
        script.on(LoadAsked(name, LoadModel("file", **ask)))
    assert caught.value.reason is reason
    assert script.colony.models() == []


def test_nobody_to_load_on(script: Script) -> None:
    with pytest.raises(AntfarmError) as caught:
        script.on(LoadAsked("m", LoadModel("file")))
    assert caught.value.reason is Reason.NO_CAPACITY


def test_a_loaded_or_loading_model_is_not_loaded_again(script: Script) -> None:
    script.joins("a")
    script.on(LoadAsked("m", LoadModel("file")))
    with pytest.raises(AntfarmError) as caught:
        script.on(LoadAsked("m", LoadModel("file")))
    assert caught.value.reason is Reason.MODEL_LOADING
    script.becomes_ready(script.fetched([Describe("m-1", 1, "a", "file")]))
    with pytest.raises(AntfarmError) as caught:
        script.on(LoadAsked("m", LoadModel("file")))
    assert caught.value.reason is Reason.MODEL_LOADED


# ---- loads that fail


def test_more_shards_than_foragers(script: Script) -> None:
    script.joins("a")
    out = script.loads(split=3)
    assert kinds(out) == ["model-failed"]
    assert script.status().state == "failed"
    assert script.refusal().reason is Reason.NO_CAPACITY


def test_a_refusal_calls_the_model_by_the_name_it_is_served_under(script: Script) -> None:
    script.joins("a", mib=1)
    script.loads("mine")
    assert script.refusal("mine").message.startswith("mine did not load: mine unsplit with ")


def test_a_file_that_one_host_lacks_is_looked_for_on_the_next(script: Script) -> None:
    script.joins("a", "b")
    script.on(LoadAsked("m", LoadModel("file")))
    missing = Failure(Reason.MODEL_UNKNOWN, "no such model")
    assert script.on(DescribeFailed("m-1", 1, "a", missing)) == [Describe("m-1", 1, "b", "file")]
    assert kinds(script.on(DescribeFailed("m-1", 1, "b", missing))) == ["model-failed"]
    assert script.refusal().reason is Reason.MODEL_UNKNOWN


def test_two_hosts_with_different_files(script: Script) -> None:
    script.joins("a", "b")
    script.on(LoadAsked("m", LoadModel("file", split=2)))
    script.on(Described("m-1", 1, "a", script.facts))
    other = msgspec.structs.replace(script.facts, fingerprint="other")
    out = script.on(Described("m-1", 1, "b", other))
    assert kinds(out) == ["SendStop", "SendStop", "model-failed"]
    assert script.refusal().reason is Reason.MODEL_MISMATCH


def test_a_shard_that_fails_while_loading_stops_the_others(script: Script) -> None:
    script.joins("a", "b")
    script.loads(split=2)
    out = script.on(ShardHeard(ShardFailed("m-1", 1, 1, BROKEN)))
    assert out == [
        SendStop("a", "m-1", 1),
        SendStop("b", "m-1", 1),
        LogOps("model-failed", "m", f"shard 1 on b: {BROKEN.message}", BROKEN.reason),
    ]
    assert script.on(ShardHeard(ShardFailed("m-1", 1, 0, BROKEN))) == []
    assert script.refusal().reason is Reason.SHARD_FAILED


@pytest.mark.parametrize(
    ("stage", "seconds"), [("describing", 100), ("loading", 50), ("linking", 20), ("proving", 10)]
)
def test_every_wait_has_an_end(script: Script, stage: str, seconds: int) -> None:
    script.joins("a")
    script.on(Tick())
    script.on(LoadAsked("m", LoadModel("file")))
    steps = [
        Described("m-1", 1, "a", script.facts),
        bound("m-1", 1, 0),
        ShardHeard(ShardLoaded("m-1", 1, 0, MEMORY, 1.0)),
        ShardHeard(ShardLinked("m-1", 1, 0)),
    ]
    script.told(*steps[: {"describing": 0, "loading": 2, "linking": 3, "proving": 4}[stage]])
    out: list[Instruction] = []
    for _ in range(seconds + 2):
        script.on(ForagerHeard(forager("a", shards=statuses("m-1", 1) if stage != "describing" else ())))
        assert kinds(out) == []
        out = script.after(1)
        if out:
            break
    assert kinds(out)[-1] == "model-failed"
    assert script.refusal().reason is Reason.TIMEOUT
    assert stage in script.refusal().message


def test_a_load_that_makes_progress_gets_more_time(script: Script) -> None:
    script.joins("a")
    script.on(Tick())
    script.loads()
    for done in range(4):
        for _ in range(40):
            script.on(ForagerHeard(forager("a")))
            assert script.after(1) == []
        script.on(ShardHeard(ShardProgress("m-1", 1, 0, done, 100)))
    assert script.status().state == "loading"


def test_a_forager_lost_while_describing_is_replaced(script: Script) -> None:
    script.joins("a", "b")
    script.on(LoadAsked("m", LoadModel("file")))
    out = script.on(ForagerLeft("a"))
    assert kinds(out) == ["forager-lost", "Describe"]
    assert out[1] == Describe("m-1", 1, "b", "file")


def test_only_the_forager_that_was_asked_last_can_fail_a_description(script: Script) -> None:
    script.joins("a", "b")
    script.on(LoadAsked("m", LoadModel("file")))
    script.on(DescribeFailed("m-1", 1, "a", Failure(Reason.MODEL_UNKNOWN, "no such model")))
    assert kinds(script.on(ForagerLeft("a"))) == ["forager-lost"]
    assert script.on(DescribeFailed("m-1", 1, "a", Failure(Reason.TIMEOUT, "no answer"))) == []
    script.becomes_ready(script.on(Described("m-1", 1, "b", script.facts)))
    assert script.status().state == "ready"


def test_an_answer_of_a_forager_that_was_lost_harms_no_ready_model(script: Script) -> None:
    script.joins("a", "b", "c")
    script.on(LoadAsked("m", LoadModel("file", split=1)))
    script.on(ForagerLeft("a"))
    script.becomes_ready(script.fetched(script.on(Described("m-1", 1, "b", script.facts))))
    assert script.on(DescribeFailed("m-1", 1, "a", Failure(Reason.TIMEOUT, "no answer"))) == []
    other = msgspec.structs.replace(script.facts, fingerprint="other")
    assert script.on(Described("m-1", 1, "a", other)) == []
    assert script.status().state == "ready"


# ---- losing what runs


def test_a_forager_that_falls_silent(script: Script) -> None:
    script.joins("a", "b")
    script.on(Tick())
    script.ready(split=2)
    out: list[Instruction] = []
    for _ in range(6):
        script.on(ForagerHeard(forager("a", shards=statuses("m-1", 1, 0))))
        out += script.after(1)
    assert kinds(out) == ["forager-lost", "FailTasks", "SendStop", "shard-missing"]
    assert isinstance(out[1], FailTasks) and out[1].failure.reason == Reason.FORAGER_LOST
    assert out[2] == SendStop("a", "m-1", 1)
    refusal = script.refusal()
    assert refusal.reason is Reason.SHARD_MISSING
    assert "shard 1 on b" in refusal.message
    assert "antc shard m" in refusal.hint
    assert script.status().state == "unavailable"


def test_a_forager_that_leaves(script: Script) -> None:
    script.joins("a", "b")
    script.ready(split=2)
    assert kinds(script.on(ForagerLeft("a"))) == ["forager-lost", "FailTasks", "SendStop", "shard-missing"]
    assert script.on(ForagerLeft("a")) == []


def test_a_lead_that_misses_a_peer_names_it(script: Script) -> None:
    script.joins("a", "b")
    script.ready(split=2)
    lost = Failure(Reason.LINK_LOST, "the connection ended")
    out = script.on(ShardHeard(ShardFailed("m-1", 1, 0, lost, lost_peer=1)))
    assert kinds(out) == ["FailTasks", "SendStop", "SendStop", "shard-missing"]
    assert isinstance(out[0], FailTasks) and out[0].failure.reason == Reason.SHARD_FAILED
    assert "shard 1 on b" in script.refusal().message
    assert script.on(ShardHeard(ShardFailed("m-1", 1, 1, BROKEN))) == []


def test_a_load_brings_it_back_under_a_new_epoch(script: Script) -> None:
    script.joins("a", "b")
    script.ready(split=2)
    script.on(ForagerLeft("b"))
    script.becomes_ready(script.loads(epoch=2))
    assert script.colony.route("m").epoch == 2


def test_a_new_split_brings_it_back_too(script: Script) -> None:
    script.joins("a", "b")
    script.ready(split=2, options=RunOptions(context=64))
    script.on(ForagerLeft("b"))
    out = script.on(LoadAsked("m", LoadModel("m", reshard=True)))
    assert out[1] == Describe("m-1", 2, "a", "file")
    loads = script.on(Described("m-1", 2, "a", script.facts))
    assert [one.load.options.context for one in loads if isinstance(one, SendLoad)] == [64]
    script.becomes_ready(loads)
    assert script.colony.route("m") == Route("m", "m-1", 2, "a", 128)


def test_the_queen_that_slept_blames_nobody(script: Script) -> None:
    script.joins("a")
    script.on(Tick())
    script.now += 3600
    assert script.on(Tick()) == []
    script.now += 1
    assert script.on(Tick(listening=False)) == []
    assert [one.id for one in script.colony.foragers()] == ["a"]


def test_a_restarted_forager_lost_its_shards(script: Script) -> None:
    script.joins("a")
    script.ready()
    out = script.on(ForagerHeard(forager("a", started=2.0)))
    assert kinds(out) == ["forager-lost", "FailTasks", "shard-missing", "forager-joined"]


def test_heartbeats_that_no_longer_list_a_shard(script: Script) -> None:
    script.joins("a")
    script.ready()
    script.on(ForagerHeard(forager("a", shards=statuses("m-1", 1))))
    assert script.status().shards[0].resident == 1000
    assert script.on(ForagerHeard(forager("a"))) == []
    assert kinds(script.on(ForagerHeard(forager("a")))) == ["FailTasks", "SendStop", "shard-missing"]


def test_shards_of_an_earlier_queen_are_stopped_and_their_epochs_not_used_again(script: Script) -> None:
    out = script.on(ForagerHeard(forager("a", shards=statuses("m-1", 7))))
    assert out[1:] == [SendStop("a", "m-1", 7)]
    assert script.on(LoadAsked("m", LoadModel("file")))[1] == Describe("m-1", 8, "a", "file")


def test_a_request_whose_answer_was_lost_ends_no_ready_model(script: Script) -> None:
    script.joins("a")
    script.ready()
    assert script.on(RequestFailed("m-1", 1, 0, Failure(Reason.TIMEOUT, "no answer"))) == []


def test_events_of_another_epoch_are_ignored(script: Script) -> None:
    script.joins("a")
    script.ready()
    before = script.status()
    for event in (ShardFailed("m-1", 9, 0, BROKEN), ShardLinked("x-1", 1, 0), ReplicaProved("m-1", 2, 0.1)):
        assert script.on(ShardHeard(event)) == []
    assert script.told(bound("m-1", 2, 0), Drained("m-1", 1), Described("m-1", 3, "a", script.facts)) == []
    assert script.status() == before


# ---- unloading and resharding


def test_unloading_stops_everything_and_is_remembered(script: Script) -> None:
    script.joins("a", "b")
    script.ready(split=2)
    out = script.on(UnloadAsked("m"))
    assert kinds(out) == ["FailTasks", "SendStop", "SendStop", "model-retired"]
    assert script.refusal().reason is Reason.MODEL_RETIRED
    assert script.refusal("never").reason is Reason.MODEL_UNKNOWN
    with pytest.raises(AntfarmError):
        script.on(UnloadAsked("m"))


def test_a_new_split_beside_the_old_one(script: Script) -> None:
    script.joins("a", "b")
    script.ready(options=RunOptions(context=64))
    loads = script.loads(epoch=2, split=2, reshard=True)
    sent = [one.load for one in loads if isinstance(one, SendLoad)]
    assert [load.options.context for load in sent] == [64, 64]
    assert script.colony.route("m").epoch == 1
    ready = script.becomes_ready(loads)
    assert ready[1:] == [Drain("m-1", 1)]
    assert script.colony.route("m").epoch == 2
    assert kinds(script.on(Drained("m-1", 1))) == ["FailTasks", "SendStop"]
    assert len(script.colony.models()[0].replicas()) == 1


def test_a_new_split_that_fails_keeps_the_old_one(script: Script) -> None:
    script.joins("a", "b")
    script.ready()
    script.loads(epoch=2, split=2, reshard=True)
    out = script.on(ShardHeard(ShardFailed("m-1", 2, 0, BROKEN)))
    assert out[:2] == [SendStop("b", "m-1", 2), SendStop("a", "m-1", 2)]
    assert script.colony.route("m").epoch == 1
    failed, serving = script.colony.models()[0].replicas()
    assert failed.failure and failed.failure.message == f"shard 0 on b: {BROKEN.message}"
    assert serving.failure is None
    script.on(ShardHeard(ShardFailed("m-1", 1, 0, BROKEN)))
    assert script.status().state == "unavailable", "which says more than the new split that failed before"
    assert script.refusal().reason is Reason.SHARD_MISSING
    assert kinds(script.loads(epoch=3, split=2, reshard=True)) == ["SendLoad", "SendLoad"]


def test_a_new_split_without_room_for_both_waits_for_the_old_one(script: Script) -> None:
    script.joins("a", "b", mib=70)
    script.ready(options=RunOptions(context=64))
    script.on(LoadAsked("m", LoadModel("m", split=2, reshard=True)))
    assert script.on(Described("m-1", 2, "a", script.facts)) == [Drain("m-1", 1)]
    assert script.refusal().reason is Reason.MODEL_LOADING
    out = script.on(Drained("m-1", 1))
    assert kinds(out) == ["FailTasks", "SendStop", "Describe"]
    script.becomes_ready(script.fetched(out))
    assert script.colony.route("m").epoch == 2


@pytest.mark.parametrize("end", ["overdue", "broke"])
def test_a_swap_that_fails_before_the_old_one_has_drained_leaves_it_serving(script: Script, end: str) -> None:
    script.joins("a", "b", mib=70)
    script.ready(options=RunOptions(context=64))
    script.on(LoadAsked("m", LoadModel("m", split=2, reshard=True)))
    assert script.on(Described("m-1", 2, "a", script.facts)) == [Drain("m-1", 1)]
    if end == "overdue":
        script.now += LIMITS.fetch + 1
        out = script.on(Tick())
    else:
        out = script.on(Broke("m-1", 2, Failure(Reason.INTERNAL, "surprise")))
    assert Keep("m-1", 1) in out and "model-failed" in kinds(out)
    assert not any(isinstance(one, FailTasks | Drain) for one in out)
    assert script.colony.route("m").epoch == 1
    assert script.on(Drained("m-1", 1)) == []
    assert script.colony.route("m").epoch == 1
    script.on(LoadAsked("m", LoadModel("m", split=2, reshard=True)))
    assert script.on(Described("m-1", 3, "a", script.facts)) == [Drain("m-1", 1)]
    assert kinds(script.on(Drained("m-1", 1))) == ["FailTasks", "SendStop", "Describe"]


def test_losing_the_old_one_while_it_drains_goes_on_with_the_new(script: Script) -> None:
    script.joins("a", "b", mib=70)
    script.ready(options=RunOptions(context=64))
    script.on(LoadAsked("m", LoadModel("m", split=2, reshard=True)))
    script.on(Described("m-1", 2, "a", script.facts))
    out = script.on(ShardHeard(ShardFailed("m-1", 1, 0, BROKEN)))
    assert kinds(out) == ["FailTasks", "SendStop", "Describe"]


def test_only_the_old_one_that_it_waits_for_makes_room_for_a_new_split(script: Script) -> None:
    """A second new split comes while the one before the first still drains."""
    script.joins("a", "b", mib=140)
    script.ready(options=RunOptions(context=64))
    split = LoadAsked("m", LoadModel("m", split=2, reshard=True))
    script.on(split)
    loads = script.fetched(script.on(Described("m-1", 2, "a", script.facts)))
    assert Drain("m-1", 1) in script.becomes_ready(loads)
    script.on(split)
    assert script.on(Described("m-1", 3, "a", script.facts)) == [Drain("m-1", 2)]
    assert kinds(script.on(Drained("m-1", 1))) == ["FailTasks", "SendStop"]
    assert kinds(script.on(Drained("m-1", 2))) == ["FailTasks", "SendStop", "SendStop", "Describe"]


def test_a_new_split_that_is_lost_with_the_old_one_does_not_begin(script: Script) -> None:
    script.joins("a", "b", mib=70)
    script.ready(options=RunOptions(context=64))
    script.on(LoadAsked("m", LoadModel("m", split=2, reshard=True)))
    assert script.on(Described("m-1", 2, "a", script.facts)) == [Drain("m-1", 1)]
    out = script.on(ForagerLeft("a"))
    assert not {"Describe", "SendLoad"} & set(kinds(out))
    assert kinds(out)[-1] == "shard-missing"
    assert script.refusal().reason is Reason.SHARD_MISSING


# ---- foragers that are gone, which the colony does not know yet


def silent(epoch: int, forager: str) -> DescribeFailed:
    gone = Failure(Reason.FORAGER_LOST, f"{forager} does not answer")
    return DescribeFailed("m-1", epoch, forager, gone)


def test_a_planned_forager_that_does_not_answer_is_planned_without(script: Script) -> None:
    script.joins("a", "b", "c")
    script.on(LoadAsked("m", LoadModel("file", split=2)))
    assert script.on(Described("m-1", 1, "a", script.facts)) == [Describe("m-1", 1, "b", "file")]
    asks = script.on(silent(1, "b"))
    assert asks == [Describe("m-1", 1, "a", "file"), Describe("m-1", 1, "c", "file")]
    script.becomes_ready(script.fetched(asks))
    assert [view.forager for view in script.status().shards] == ["a", "c"]


def test_a_new_split_that_fails_leaves_a_lost_model_as_it_was(script: Script) -> None:
    script.joins("a", "b")
    script.ready(split=2)
    script.on(ShardHeard(ShardFailed("m-1", 1, 1, BROKEN)))
    before = script.refusal()
    again = LoadAsked("m", LoadModel("m", reshard=True))
    script.told(again, Described("m-1", 2, "a", script.facts))
    assert script.status().state == "loading"
    assert [one.epoch for one in script.colony.models()[0].replicas()] == [2]
    assert kinds(script.on(silent(2, "b")))[-1] == "model-failed"
    assert script.status().state == "unavailable"
    assert (script.refusal().reason, script.refusal().message) == (Reason.SHARD_MISSING, before.message)
    failed = script.colony.models()[0].replicas()[0].failure
    assert failed and failed.reason == Reason.NO_CAPACITY and "no answer from b" in failed.message
    script.on(ForagerLeft("b"))
    script.becomes_ready(script.fetched(script.on(again)))
    assert script.status().state == "ready"


def test_a_model_that_gave_way_to_a_split_that_fails_can_be_brought_back(script: Script) -> None:
    script.joins("a", "b", mib=70)
    script.ready(options=RunOptions(context=64))
    script.told(
        LoadAsked("m", LoadModel("m", split=2, reshard=True)),
        Described("m-1", 2, "a", script.facts),
        Drained("m-1", 1),
        silent(2, "b"),
    )
    assert script.status().state == "unavailable"
    assert script.refusal().reason is Reason.SHARD_MISSING
    assert "antc shard m" in script.refusal().hint
