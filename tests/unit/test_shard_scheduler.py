"""The scheduler alone: which rows each step computes, for made-up sequences."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antfarm.errors import Reason, StateError
from antfarm.shard.answer import Answer
from antfarm.shard.sampler import Sampler
from antfarm.shard.scheduler import WAITING, Scheduler, Step
from antfarm.shard.sequence import Clock, Sequence
from antfarm.types import Sampling


def sequence(name: str, prompt: int) -> Sequence:
    tokens = np.arange(100, 100 + prompt, dtype=np.int32)
    answer = cast(Answer, None)  # the scheduler never looks at it
    return Sequence(name, tokens, Sampler(Sampling(), []), answer, Clock(0.0))


def rows(step: Step | None) -> list[tuple[int, int, int]]:
    """(slot, position, token) of each row."""
    assert step is not None
    return [
        (int(s), int(p), int(t))
        for s, p, t in zip(step.batch.slots, step.batch.positions, step.tokens, strict=True)
    ]


def sampled(step: Step | None, token: int = 7) -> None:
    """Pretend that each sequence which gets a token got this one."""
    assert step is not None
    for each in step.sequences[: len(step.batch.outputs)]:
        each.last = token


def test_a_prompt_is_read_in_chunks_and_then_answered_token_by_token() -> None:
    scheduler = Scheduler(slots=1, chunk=4)
    scheduler.add(sequence("a", 6))
    first = scheduler.schedule()
    assert rows(first) == [(0, 0, 100), (0, 1, 101), (0, 2, 102), (0, 3, 103)]
    assert first and first.sequences[0].task == "a" and len(first.batch.outputs) == 0
    second = scheduler.schedule()
    assert rows(second) == [(0, 4, 104), (0, 5, 105)]
    assert second and second.batch.outputs.tolist() == [1] and second.sequences[0].task == "a"
    sampled(second, 42)
    third = scheduler.schedule()
    assert rows(third) == [(0, 6, 42)]
    assert third and third.batch.outputs.tolist() == [0]
    assert not third.batch.is_chunk


def test_sequences_wait_in_order_and_a_slot_is_free_at_once() -> None:
    scheduler = Scheduler(slots=1, chunk=4)
    a, b, c = sequence("a", 1), sequence("b", 1), sequence("c", 1)
    for each in (a, b, c):
        scheduler.add(each)
    sampled(scheduler.schedule())
    assert (a.slot, b.slot) == (0, -1)
    scheduler.remove(b)  # cancelled while it waits
    scheduler.remove(a)
    assert rows(scheduler.schedule()) == [(0, 0, 100)]
    assert c.slot == 0
    scheduler.remove(c)
    assert scheduler.schedule() is None
    assert not scheduler.busy


def test_prompts_and_answers_take_turns() -> None:
    scheduler = Scheduler(slots=3, chunk=2)
    scheduler.add(sequence("a", 1))
    sampled(scheduler.schedule())
    scheduler.add(sequence("b", 5))
    scheduler.add(sequence("c", 1))
    kinds = []
    for _ in range(8):
        step = scheduler.schedule()
        kinds.append([slot for slot, _, _ in rows(step)])
        sampled(step)
    assert kinds == [[0], [1, 1], [0], [1, 1], [0], [1], [0, 1], [2]]
    assert [slot for slot, _, _ in rows(scheduler.schedule())] == [0, 1, 2]


def test_prompts_alone_run_without_gaps() -> None:
    scheduler = Scheduler(slots=2, chunk=2)
    scheduler.add(sequence("a", 4))
    assert [len(rows(scheduler.schedule())) for _ in range(2)] == [2, 2]


def test_one_too_many_is_refused() -> None:
    scheduler = Scheduler(slots=1, chunk=4)
    for i in range(WAITING):
        scheduler.add(sequence(str(i), 1))
    with pytest.raises(StateError) as failure:
        scheduler.add(sequence("more", 1))
    assert failure.value.reason == Reason.QUEUE_FULL


@given(
    slots=st.integers(1, 4),
    chunk=st.integers(1, 5),
    tasks=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 6)), min_size=1, max_size=8),
)
def test_every_position_is_computed_once_and_in_order(
    slots: int, chunk: int, tasks: list[tuple[int, int]]
) -> None:
    """Each sequence's rows are its prompt and then its tokens, in a slot that it has alone."""
    scheduler = Scheduler(slots, chunk)
    all_ = [sequence(str(i), prompt) for i, (prompt, _) in enumerate(tasks)]
    left = {id(s): answer for s, (_, answer) in zip(all_, tasks, strict=True)}
    positions: dict[str, list[int]] = {s.task: [] for s in all_}
    for each in all_:
        scheduler.add(each)
    for _ in range(1000):
        step = scheduler.schedule()
        if step is None:
            break
        assert step.batch.rows <= max(slots, chunk)
        owners = {s.slot: s for s in all_ if s.slot >= 0 and left[id(s)] > 0}
        slots_seen = step.batch.slots.tolist()
        assert step.batch.is_chunk or slots_seen == sorted(set(slots_seen))
        for slot, position, _token in rows(step):
            positions[owners[slot].task].append(position)
        for each in step.sequences[: len(step.batch.outputs)]:
            each.last = 1
            left[id(each)] -= 1
            if left[id(each)] == 0:
                scheduler.remove(each)
    assert not scheduler.busy
    for each, (prompt, answer) in zip(all_, tasks, strict=True):
        assert positions[each.task] == list(range(prompt + answer - 1))
