"""Subjects: names, placeholders and strict codecs."""

from __future__ import annotations

import pytest

from antfarm.bus import subjects
from antfarm.bus.subject import RequestSubject, Subject
from antfarm.errors import AntfarmError, Reason
from antfarm.messages import Done, Failure, ShardLinked, ShardStop, TaskFinished, TaskTokens


def test_of_fills_placeholders_and_leaves_the_template_alone() -> None:
    bound = subjects.FORAGER_STOP.of("host-a")
    assert bound.name == "antfarm.v1.forager.host-a.stop"
    assert subjects.FORAGER_STOP.pattern == "antfarm.v1.forager.*.stop"
    with pytest.raises(ValueError, match="open placeholder"):
        _ = subjects.FORAGER_STOP.name


@pytest.mark.parametrize("token", ["", "a.b", "*", ">", "a b", "x" * 200, "new\nline"])
def test_of_refuses_what_would_change_the_subject(token: str) -> None:
    with pytest.raises(AntfarmError) as caught:
        subjects.SHARD_EVENTS.of(token)
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_a_union_comes_back_as_the_type_that_was_sent() -> None:
    for event in (TaskTokens("t", 3, 1, "é"), TaskFinished("t", 4, "stop")):
        assert subjects.TASK_EVENTS.decode(subjects.TASK_EVENTS.encode(event)) == event


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{}",
        b'{"type":"shard-stop"}',
        b'{"type":"shard-stop","replica":1,"epoch":1}',
        b'{"type":"shard-stop","replica":"r","epoch":"1"}',
        b'{"type":"shard-stop","replica":"r","epoch":1,"more":true}',
        b'{"type":"done"}',
    ],
)
def test_decoding_is_strict(data: bytes) -> None:
    with pytest.raises(AntfarmError) as caught:
        subjects.FORAGER_STOP.decode(data)
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_a_failure_reply_is_raised_as_the_error_it_stands_for() -> None:
    subject = subjects.FORAGER_STOP
    assert subject.decode_reply(subject.encode_reply(Done())) == Done()
    refusal = AntfarmError(Reason.NO_CAPACITY, "too big", hint="add a host", needed=7)
    with pytest.raises(AntfarmError) as caught:
        subject.decode_reply(subject.encode_reply(Failure.of(refusal)))
    assert (caught.value.reason, caught.value.hint, caught.value.numbers) == (
        Reason.NO_CAPACITY,
        "add a host",
        {"needed": 7},
    )


def test_no_two_subjects_share_a_name_and_all_carry_the_version() -> None:
    table = [value for value in vars(subjects).values() if isinstance(value, Subject)]
    patterns = [subject.pattern for subject in table]
    assert len(set(patterns)) == len(patterns) == 14
    assert all(pattern.startswith("antfarm.v1.") for pattern in patterns)
    assert all(subject.absent for subject in table if isinstance(subject, RequestSubject))
    assert subjects.SHARD_EVENTS.decode(subjects.SHARD_EVENTS.encode(ShardLinked("r", 1, 0))) == ShardLinked(
        "r", 1, 0
    )
    assert ShardStop("r", 1) == subjects.FORAGER_STOP.decode(b'{"type":"shard-stop","replica":"r","epoch":1}')
