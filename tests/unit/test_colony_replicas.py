"""Replicas of one model: their own foragers, routing among them, one lost while the others go on."""

from __future__ import annotations

import pytest
from support.colony_script import BROKEN, Script, forager, kinds, statuses
from support.models import Models

from antfarm.colony.events import (
    Describe,
    Described,
    DescribeFailed,
    Drain,
    Drained,
    FailTasks,
    ForagerHeard,
    ForagerLeft,
    Instruction,
    LeadSilent,
    LoadAsked,
    LogOps,
    SendLoad,
    SendStop,
    ShardHeard,
    Tick,
    UnloadAsked,
)
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import Failure, LoadModel, ShardFailed
from antfarm.model.gguf import GgufFile
from antfarm.types import ModelFacts, RunOptions

LOST = Failure(Reason.LINK_LOST, "the connection ended")


@pytest.fixture(scope="module")
def facts(models: Models) -> ModelFacts:
    with GgufFile.open(models.path("tiny-llama")) as file:
        return file.facts


@pytest.fixture
def script(facts: ModelFacts) -> Script:
    return Script(facts)


def where(instructions: list[Instruction]) -> list[tuple[str, str, int]]:
    """Replica, forager and shard of each load."""
    return [
        (one.load.replica, one.forager, one.load.shard) for one in instructions if isinstance(one, SendLoad)
    ]


def states(script: Script) -> dict[str, str]:
    model = script.colony.models()[0]
    return {seat.name: seat.view.phase.value for seat in model.seats if seat.view}


# ---- loading


def test_each_replica_has_foragers_of_its_own(script: Script) -> None:
    script.joins("a", "b", "c", "d")
    asked = script.on(LoadAsked("m", LoadModel("file", split=2, replicas=2)))
    assert asked == [LogOps("model-loading", "m", "file was asked for"), Describe("m-1", 1, "a", "file")]
    fetching = script.on(Described("m-1", 1, "a", script.facts))
    assert fetching == [
        Describe("m-1", 1, "b", "file"),
        Describe("m-2", 1, "c", "file"),
        Describe("m-2", 1, "d", "file"),
    ]
    loads = script.fetched(fetching)
    assert where(loads) == [("m-1", "a", 0), ("m-1", "b", 1), ("m-2", "c", 0), ("m-2", "d", 1)]
    assert kinds(script.becomes_ready(loads)) == ["model-ready", "model-ready"]


def test_the_model_is_ready_with_its_first_replica(script: Script) -> None:
    script.joins("a", "b")
    loads = script.loads(replicas=2)
    script.becomes_ready([one for one in loads if isinstance(one, SendLoad) and one.load.replica == "m-2"])
    assert script.status().state == "ready"
    assert script.colony.route("m").replica == "m-2"


def test_replicas_without_foragers_enough_are_not_begun(script: Script) -> None:
    script.joins("a", "b", "c")
    out = script.loads(split=2, replicas=2)
    assert kinds(out) == ["model-failed", "model-failed"]
    assert script.refusal().reason is Reason.NO_CAPACITY
    assert "a, b hold other replicas" in script.refusal().message


def test_more_replicas_than_foragers_are_refused_at_once(script: Script) -> None:
    script.joins("a", "b")
    with pytest.raises(AntfarmError) as caught:
        script.on(LoadAsked("m", LoadModel("file", replicas=10**9)))
    assert (caught.value.reason, caught.value.numbers) == (Reason.NO_CAPACITY, {"foragers": 2})
    assert script.colony.models() == []


def test_a_model_that_nobody_has_fails_for_all_replicas(script: Script) -> None:
    script.joins("a", "b")
    script.on(LoadAsked("m", LoadModel("file", replicas=2)))
    missing = Failure(Reason.MODEL_UNKNOWN, "no such model")
    assert script.on(DescribeFailed("m-1", 1, "a", missing)) == [Describe("m-1", 1, "b", "file")]
    assert kinds(script.on(DescribeFailed("m-1", 1, "b", missing))) == ["model-failed", "model-failed"]
    assert script.refusal().reason is Reason.MODEL_UNKNOWN


def test_a_replica_that_fails_to_load_leaves_the_others_loading(script: Script) -> None:
    script.joins("a", "b")
    loads = script.loads(replicas=2)
    out = script.on(ShardHeard(ShardFailed("m-1", 1, 0, BROKEN)))
    assert kinds(out) == ["SendStop", "model-failed"]
    script.becomes_ready(loads[1:])
    assert states(script) == {"m-1": "ended", "m-2": "ready"}


@pytest.mark.parametrize(("replicas", "reshard"), [(0, False), (-1, False), (2, True)])
def test_wrong_numbers_of_replicas_are_refused(script: Script, replicas: int, reshard: bool) -> None:
    script.joins("a", "b")
    if reshard:
        script.ready()
    with pytest.raises(AntfarmError) as caught:
        script.on(LoadAsked("m", LoadModel("file", replicas=replicas, reshard=reshard)))
    assert caught.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize("until", ["described", "loading", "ready"])
def test_unloading_stops_all_replicas_whatever_they_do(script: Script, until: str) -> None:
    script.joins("a", "b")
    script.on(LoadAsked("m", LoadModel("file", replicas=2)))
    if until != "described":
        loads = script.fetched(script.on(Described("m-1", 1, "a", script.facts)))
        if until == "ready":
            script.becomes_ready(loads)
    out = script.on(UnloadAsked("m"))
    stops = [one for one in out if isinstance(one, SendStop)]
    assert stops == ([] if until == "described" else [SendStop("a", "m-1", 1), SendStop("b", "m-2", 1)])
    assert script.on(Described("m-1", 1, "a", script.facts)) == []
    listed = forager("b", shards=statuses("m-2", 1))  # a load that was under way when the stop came
    assert script.on(ForagerHeard(listed)) == [SendStop("b", "m-2", 1)]
    assert script.refusal().reason is Reason.MODEL_RETIRED


# ---- routing


def test_tasks_go_to_the_replica_with_the_fewest_a_slot(script: Script) -> None:
    script.joins("a", "b", "c")
    script.ready(replicas=3, options=RunOptions(slots=2))
    one, two, three = ("m-1", 1), ("m-2", 1), ("m-3", 1)
    route = script.colony.route
    assert route("m").replica == "m-1"
    assert route("m", {one: 1}).replica == "m-2"
    assert route("m", {one: 1, two: 1}).replica == "m-3"
    assert route("m", {one: 2, two: 1, three: 1}).replica == "m-2"
    assert route("m", {one: 1, two: 1, three: 1, ("n-1", 1): 0}).replica == "m-1"


def test_a_known_beginning_goes_where_it_was_unless_another_is_freer(script: Script) -> None:
    script.joins("a", "b")
    script.ready(replicas=2, options=RunOptions(slots=2, queue=2))
    one, two = ("m-1", 1), ("m-2", 1)

    def route(first: int, second: int) -> str:
        return script.colony.route("m", {one: first, two: second}, preferred=two).replica

    assert [route(0, 0), route(0, 1), route(2, 2), route(4, 3)] == ["m-2"] * 4
    assert [route(1, 2), route(3, 4)] == ["m-1"] * 2, "where it was, it would wait"
    assert script.colony.route("m", {one: 1}, preferred=("m-1", 0)).replica == "m-2", "that one is no more"


def test_tasks_beyond_all_queues_are_refused(script: Script) -> None:
    script.joins("a", "b")
    script.ready(replicas=2, options=RunOptions(slots=2, queue=3))
    assert script.colony.route("m", {("m-1", 1): 5, ("m-2", 1): 4}).replica == "m-2"
    with pytest.raises(AntfarmError) as caught:
        script.colony.route("m", {("m-1", 1): 5, ("m-2", 1): 5})
    assert caught.value.reason is Reason.QUEUE_FULL
    assert caught.value.numbers["tasks"] == 10


def test_the_model_tells_how_many_tasks_it_takes_at_most(script: Script) -> None:
    script.joins("a", "b")
    loads = script.loads(replicas=2, options=RunOptions(slots=2, queue=3))
    script.becomes_ready(loads)
    assert script.status().room == 10
    script.on(ForagerLeft("b"))
    assert script.status().room == 10, "it may come back"


# ---- losing one


def test_the_others_go_on_when_one_is_lost(script: Script) -> None:
    script.joins("a", "b")
    script.ready(replicas=2)
    out = script.on(ForagerLeft("a"))
    assert kinds(out) == ["forager-lost", "FailTasks", "shard-missing"]
    assert isinstance(out[1], FailTasks) and (out[1].replica, out[1].epoch) == ("m-1", 1)
    assert isinstance(out[2], LogOps) and "m-1 misses shard 0 on a" in out[2].text
    assert "1 of 2 replicas serve" in out[2].text
    assert script.status().state == "ready"
    assert states(script) == {"m-1": "ended", "m-2": "ready"}
    assert script.colony.route("m", {("m-2", 1): 3}).replica == "m-2"
    script.on(ForagerLeft("b"))
    assert script.refusal().reason is Reason.SHARD_MISSING


# ---- a new split


def test_a_new_split_takes_one_replica_after_the_other(script: Script) -> None:
    script.joins("a", "b", "c", "d")
    script.ready(replicas=2)
    first = script.on(LoadAsked("m", LoadModel("m", split=2, reshard=True)))
    assert first == [
        LogOps("model-loading", "m", "m-1 in 2 shards, auto, was asked for"),
        Describe("m-1", 2, "a", "file"),
    ]
    loads = script.fetched(script.on(Described("m-1", 2, "a", script.facts)))
    assert "b" not in [forager for _, forager, _ in where(loads)], "m-2 is there"
    second = script.becomes_ready(loads)
    assert kinds(second) == ["model-ready", "Drain", "model-loading", "Describe"]
    assert second[3] == Describe("m-2", 3, "a", "file")
    assert kinds(script.on(Drained("m-1", 1))) == ["FailTasks", "SendStop"]
    loads = script.fetched(script.on(Described("m-2", 3, "a", script.facts)))
    assert kinds(script.becomes_ready(loads)) == ["model-ready", "Drain"]
    assert {r.epoch for r in script.colony.models()[0].replicas()} == {2, 3}


def test_a_new_split_brings_lost_replicas_back_first(script: Script) -> None:
    script.joins("a", "b", "c")
    script.ready(replicas=2, options=RunOptions(context=64))
    script.on(ForagerLeft("b"))
    out = script.on(LoadAsked("m", LoadModel("m", reshard=True)))
    assert out[1] == Describe("m-2", 2, "a", "file")
    loads = script.fetched(script.on(Described("m-2", 2, "a", script.facts)))
    assert where(loads) == [("m-2", "c", 0)]
    script.becomes_ready(loads)
    assert states(script)["m-2"] == "ready"


def test_a_new_split_ends_with_the_first_that_fails(script: Script) -> None:
    script.joins("a", "b")
    script.ready(replicas=2)
    script.on(LoadAsked("m", LoadModel("m", split=3, reshard=True)))
    assert kinds(script.on(Described("m-1", 2, "a", script.facts))) == ["model-failed"]
    assert states(script) == {"m-1": "ready", "m-2": "ready"}
    again = script.on(LoadAsked("m", LoadModel("m", split=1, reshard=True)))
    assert again[1] == Describe("m-1", 3, "a", "file")


def test_a_new_split_without_room_waits_while_the_other_replica_serves(script: Script) -> None:
    script.joins("a", "b", mib=70)
    script.ready(replicas=2, options=RunOptions(context=64, slots=1))
    script.on(LoadAsked("m", LoadModel("m", reshard=True)))
    assert script.on(Described("m-1", 2, "a", script.facts)) == [Drain("m-1", 1)]
    assert script.colony.route("m").replica == "m-2"
    assert script.status().state == "ready"
    assert where(script.on(Drained("m-1", 1))) == [("m-1", "a", 0)]


# ---- who is at fault


def three_shards(script: Script) -> None:
    script.joins("a", "b", "c")
    script.ready(split=3, mode="pipeline")


def failed(shard: int, lost_peer: int | None = None) -> ShardHeard:
    failure = BROKEN if lost_peer is None else LOST
    return ShardHeard(ShardFailed("m-1", 1, shard, failure, lost_peer))


def test_a_shards_own_end_counts_more_than_its_neighbours_word(script: Script) -> None:
    """Shard 2 dies and takes shard 1 with it; the lead sees only shard 1 go, and is heard first."""
    three_shards(script)
    out = script.on(failed(0, lost_peer=1))
    assert kinds(out) == ["FailTasks", "SendStop", "SendStop", "SendStop", "shard-missing"]
    assert "shard 1 on b" in script.refusal().message
    found = script.on(failed(2))
    assert kinds(found) == ["cause-found"]
    assert isinstance(found[0], LogOps) and found[0].text == f"it was shard 2 on c: {BROKEN.message}"
    assert "shard 2 on c" in script.refusal().message
    assert BROKEN.message in script.refusal().message
    assert script.told(failed(1, lost_peer=2), failed(1), failed(0)) == []


@pytest.mark.parametrize("reports", [((0, 1), (1, 2)), ((0, 1), (1, 2), (2, 1))])
def test_who_is_accused_and_lost_another_is_not_at_fault(
    script: Script, reports: tuple[tuple[int, int], ...]
) -> None:
    three_shards(script)
    script.told(*(failed(*report) for report in reports))
    assert script.refusal().reason is Reason.SHARD_MISSING
    assert "shard 2 on c" in script.refusal().message


def test_a_report_that_comes_before_the_accusation_it_answers_is_kept(script: Script) -> None:
    script.joins("a", "b", "c", "d")
    script.ready(split=4, mode="pipeline")
    assert "shard-missing" in kinds(script.on(failed(0, lost_peer=1)))
    assert script.on(failed(2, lost_peer=3)) == []
    assert kinds(script.on(failed(1, lost_peer=2))) == ["cause-found"]
    assert "shard 3 on d" in script.refusal().message


def test_two_that_name_each_other_leave_the_first_word(script: Script) -> None:
    three_shards(script)
    script.on(failed(0, lost_peer=1))
    assert script.on(failed(1, lost_peer=0)) == []
    assert "shard 1 on b" in script.refusal().message


def test_the_right_shard_named_first_stays_named(script: Script) -> None:
    three_shards(script)
    script.on(failed(2))
    assert script.told(failed(0, lost_peer=1), failed(1, lost_peer=2)) == []
    assert "shard 2 on c" in script.refusal().message


# ---- a lead that hangs

SILENT = Failure(Reason.TIMEOUT, "it has said nothing for 60 s")


def heard(script: Script, seconds: int) -> None:
    """Time in which the foragers and their shards are heard."""
    for _ in range(seconds):
        script.after(1)
        for replica in script.colony.models()[0].replicas():
            for shard, id in enumerate(replica.foragers()):
                script.on(ForagerHeard(forager(id, shards=statuses(replica.name, 1, shard))))


def test_a_silent_lead_breaks_its_replica_while_the_others_serve(script: Script) -> None:
    script.joins("a", "b", "c", "d")
    script.ready(split=2, replicas=2)
    heard(script, 70)
    out = script.on(LeadSilent("m-1", 1, 60, SILENT))
    assert kinds(out) == ["FailTasks", "SendStop", "SendStop", "shard-missing"]
    assert isinstance(out[0], FailTasks) and out[0].failure.reason == Reason.SHARD_FAILED
    assert isinstance(out[-1], LogOps)
    assert "m-1 misses shard 0 on a" in out[-1].text and SILENT.message in out[-1].text
    assert script.on(LeadSilent("m-1", 1, 60, SILENT)) == []
    assert script.colony.route("m").replica == "m-2"
    script.on(LeadSilent("m-2", 1, 60, SILENT))
    assert script.refusal().reason is Reason.SHARD_MISSING
    assert "antc shard m" in script.refusal().hint


@pytest.mark.parametrize("why", ["the bus was away", "the queen slept", "the queen has just woken"])
def test_a_lead_is_not_silent_while_nobody_could_be_heard(script: Script, why: str) -> None:
    script.joins("a")
    script.ready()
    heard(script, 70)
    if why == "the bus was away":
        script.on(Tick(listening=False))
    else:
        script.now += 60
    if why == "the queen slept":
        script.on(Tick())
        heard(script, 30)
    assert script.on(LeadSilent("m-1", 1, 60, SILENT)) == []
    heard(script, 62)
    assert "shard-missing" in kinds(script.on(LeadSilent("m-1", 1, 60, SILENT)))
