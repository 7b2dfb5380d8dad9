"""The scheduler alone: which rows each step computes, for made-up sequences."""

from __future__ import annotations

from collections import deque
from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from antfarm.batch import Copy
from antfarm.shard.answer import Answer
from antfarm.shard.pacing import Kind
from antfarm.shard.sampler import Sampler
from antfarm.shard.scheduler import Scheduler, Step
from antfarm.shard.sequence import Clock, Sequence
from antfarm.types import RunOptions, Sampling

CONTEXT = 64


def sequence(name: str, prompt: int | list[int]) -> Sequence:
    """A prompt of so many tokens that no other prompt begins with, or of these."""
    tokens = (
        [1000 * (1 + sum(name.encode())) + i for i in range(prompt)] if isinstance(prompt, int) else prompt
    )
    answer = cast(Answer, None)  # the scheduler never looks at it
    return Sequence(name, np.array(tokens, np.int32), Sampler(Sampling(), []), answer, Clock(0.0))


def scheduler(slots: int = 1, chunk: int = 4, stages: int = 1, **options: int) -> Scheduler:
    return Scheduler(RunOptions(context=CONTEXT, slots=slots, chunk=chunk, **options), stages)  # type: ignore[arg-type]


def rows(step: Step | None) -> list[tuple[int, int, int]]:
    """(slot, position, token) of each row."""
    assert step is not None
    return [
        (int(s), int(p), int(t))
        for s, p, t in zip(step.batch.slots, step.batch.positions, step.tokens, strict=True)
    ]


def slots(step: Step | None) -> list[int]:
    return [slot for slot, _, _ in rows(step)]


def come_back(plan: Scheduler, token: int = 7, seconds: float = 1.0) -> Step:
    """The oldest step's result comes; each sequence that gets a token gets this one."""
    step = plan.oldest
    assert step
    for each in step.sequences[: len(step.batch.outputs)]:
        each.last = token
    plan.finish(seconds)
    return step


def run(plan: Scheduler, token: int = 7) -> Step:
    """One step from end to end."""
    step = plan.schedule()
    assert step
    assert come_back(plan, token) is step
    return step


def test_a_prompt_is_read_in_chunks_and_then_answered_token_by_token() -> None:
    plan = scheduler()
    a = sequence("a", [100, 101, 102, 103, 104, 105])
    plan.add(a)
    first = run(plan)
    assert rows(first) == [(0, 0, 100), (0, 1, 101), (0, 2, 102), (0, 3, 103)]
    assert first.sequences == (a,) and len(first.batch.outputs) == 0
    second = run(plan, 42)
    assert rows(second) == [(0, 4, 104), (0, 5, 105)]
    assert second.batch.outputs.tolist() == [1] and second.sequences == (a,)
    third = run(plan)
    assert rows(third) == [(0, 6, 42)]
    assert third.batch.outputs.tolist() == [0]
    assert not third.batch.is_chunk


def test_sequences_wait_in_order_and_a_slot_is_free_at_once() -> None:
    plan = scheduler()
    a, b, c = sequence("a", 1), sequence("b", 1), sequence("c", 1)
    for each in (a, b, c):
        plan.add(each)
    run(plan)
    assert (a.slot, b.slot, plan.waiting) == (0, -1, 2)
    plan.remove(b)  # cancelled while it waits
    plan.remove(a)
    assert run(plan).sequences == (c,)
    assert c.slot == 0
    plan.remove(c)
    assert plan.schedule() is None
    assert not plan.busy


def test_a_sequence_can_end_while_its_steps_are_under_way() -> None:
    plan = scheduler(stages=2)
    a, b = sequence("a", 8), sequence("b", 3)
    plan.add(a)
    plan.add(b)
    flying = [plan.schedule(), plan.schedule()]
    assert [step and step.sequences for step in flying] == [(a,), (a,)]
    plan.remove(a)
    third = plan.schedule()
    assert third and third.sequences == (b,) and b.slot == 0
    assert [come_back(plan) for _ in range(3)] == [*flying, third]
    assert run(plan).sequences == (b,)


def test_how_many_more_may_come() -> None:
    plan = scheduler(slots=2, queue=3)
    assert plan.room == 5  # two of them would not wait
    for name in "abcde":
        plan.add(sequence(name, 1))
    assert plan.room == 0
    run(plan)
    assert (plan.waiting, plan.slots.free, plan.room) == (4, 1, 0)
    plan.remove(next(s for s in plan.sequences() if s.slot < 0))
    assert plan.room == 1


def test_prompts_and_answers_share_the_time() -> None:
    """Steps of decoding take 1 s, chunks 3 s: half of the time each are three to one."""
    plan = scheduler(slots=3, chunk=4)
    plan.add(sequence("a", 1))
    run(plan)
    run(plan)
    plan.add(sequence("b", 17))
    kinds = []
    for _ in range(16):
        step = plan.schedule()
        assert step
        kinds.append(step.turn.kind)
        come_back(plan, seconds=3.0 if step.turn.kind is Kind.PROMPT else 1.0)
    assert kinds[:9] == [Kind.PROMPT, *[Kind.ANSWER] * 3] * 2 + [Kind.PROMPT]


def test_lanes_keep_every_stage_busy_and_even_out() -> None:
    plan = scheduler(slots=6, chunk=4, stages=2)
    some = [sequence(name, 1) for name in "abcdef"]
    for each in some:
        plan.add(each)
    while any(each.last < 0 for each in some):
        run(plan)
    first, second = plan.schedule(), plan.schedule()
    assert len(slots(first)) == len(slots(second)) == 3
    assert {*slots(first), *slots(second)} == {0, 1, 2, 3, 4, 5}
    assert plan.schedule() is None  # both lanes are under way
    come_back(plan)
    assert first and second
    stays, *leave = first.sequences
    for each in leave:
        plan.remove(each)
    assert plan.schedule() and plan.oldest is second
    come_back(plan)
    third = plan.schedule()  # four are left, so two in each lane
    assert third and third.sequences == second.sequences[:2]
    come_back(plan)
    fourth = plan.schedule()
    assert fourth and set(fourth.sequences) == {second.sequences[2], stays}


def test_a_lone_answer_is_one_step_at_a_time() -> None:
    plan = scheduler(slots=2, stages=3)
    plan.add(sequence("a", 1))
    for _ in range(3):
        assert plan.schedule()
        assert plan.schedule() is None
        come_back(plan)


def test_chunks_of_a_prompt_follow_each_other() -> None:
    plan = scheduler(chunk=8, stages=2)  # so that each stage has four rows
    plan.add(sequence("a", 18))
    train = [plan.schedule() for _ in range(3)]
    assert [step and step.batch.positions[0] for step in train] == [0, 4, 8]
    assert plan.schedule() is None  # three are enough for two stages
    come_back(plan)
    last = [plan.schedule()]
    come_back(plan)
    last.append(plan.schedule())
    assert [len(step.batch.outputs) for step in last if step] == [0, 1]
    come_back(plan)
    assert plan.schedule() is None  # an earlier chunk's result is not the one that the answer waits for
    come_back(plan)
    assert plan.schedule() is None
    come_back(plan, token=42)
    assert rows(plan.schedule()) == [(0, 18, 42)]


def test_one_prompt_follows_another_through_the_stages() -> None:
    plan = scheduler(slots=2, chunk=8, stages=2)
    a, b = sequence("a", 3), sequence("b", 3)
    for each in (a, b):
        plan.add(each)
    first, second = plan.schedule(), plan.schedule()
    assert first and first.sequences == (a,)
    assert second and second.sequences == (b,)  # though no token of a has come


def test_a_short_prompt_overtakes_a_long_one_with_every_second_chunk() -> None:
    plan = scheduler(slots=3, chunk=4)
    book, question, other = sequence("book", 40), sequence("question", 20), sequence("other", 40)
    plan.add(book)
    assert run(plan).sequences == (book,)
    for each in (other, question):
        plan.add(each)
    assert [run(plan).sequences for _ in range(6)] == [(question,), (book,)] * 3
    plan.remove(question)
    assert [run(plan).sequences for _ in range(5)] == [(book,)] * 5  # the other has more to read


def test_who_has_no_slot_overtakes_nobody() -> None:
    plan = scheduler(slots=2, chunk=4)
    some = [sequence("book", 40), sequence("page", 20), sequence("line", 1)]
    for each in some:
        plan.add(each)
    assert [run(plan).sequences for _ in range(4)] == [(some[1],), (some[0],)] * 2
    plan.remove(some[0])
    assert run(plan).sequences == (some[2],)


def test_a_copy_goes_with_the_first_chunk_alone() -> None:
    plan = scheduler(slots=2, chunk=8)
    prompt = list(range(40))
    plan.add(sequence("a", prompt))
    plan.add(sequence("b", prompt))
    b = next(s for s in plan.sequences() if s.task == "b")
    steps = [run(plan) for _ in range(8)]
    copies = [step.batch.copy for step in steps if step.sequences == (b,)]
    assert copies[0] == Copy(0, 1, 39) and not any(copies[1:])
    assert b.cached == 39
    assert not any(step.batch.copy for step in steps if step.sequences != (b,))


@given(
    slot_count=st.integers(1, 4),
    chunk=st.integers(1, 9),
    stages=st.integers(1, 3),
    tasks=st.lists(st.tuples(st.integers(1, 24), st.integers(1, 6)), min_size=1, max_size=8),
    words=st.integers(1, 3),
    choices=st.randoms(use_true_random=False),
)
def test_every_position_is_computed_once_and_in_order(
    slot_count: int, chunk: int, stages: int, tasks: list[tuple[int, int]], words: int, choices: object
) -> None:
    """Whatever is reused, copied, cancelled and under way at once: each row that a sequence's tokens need
    is in its slot, computed from its own tokens, when a step attends to it."""
    rng = cast(np.random.Generator, np.random.default_rng(choices.getrandbits(32)))  # type: ignore[attr-defined]
    plan = scheduler(slot_count, chunk, stages)
    all_ = [sequence(str(i), rng.integers(0, words, n).tolist()) for i, (n, _) in enumerate(tasks)]
    left = {s.task: answer for s, (_, answer) in zip(all_, tasks, strict=True)}
    said: dict[str, list[int]] = {s.task: [] for s in all_}
    cells: list[list[int | None]] = [[None] * CONTEXT for _ in range(slot_count)]  # what the shards hold
    pending = deque(all_)
    for _ in range(2000):
        if pending and rng.random() < 0.3:
            plan.add(pending.popleft())
        if rng.random() < 0.02 and (victims := list(plan.sequences())):
            plan.remove(victims[0])
            left[victims[0].task] = -1
        step = plan.schedule() if rng.random() < 0.7 else None
        if step:
            check(step, cells, said)
            assert step.batch.rows <= max(slot_count, chunk)
        elif plan.oldest:
            for each in plan.oldest.sequences[: len(plan.oldest.batch.outputs)]:
                each.last = int(rng.integers(0, words))
                said[each.task].append(each.last)
                left[each.task] -= 1
                if left[each.task] == 0:
                    plan.remove(each)
            plan.finish(float(rng.random()))
        elif not pending and not plan.busy:
            break
    assert not plan.busy
    assert plan.slots.free == slot_count
    for each, (_, answer) in zip(all_, tasks, strict=True):
        assert left[each.task] < 0 or len(said[each.task]) == answer


def check(step: Step, cells: list[list[int | None]], said: dict[str, list[int]]) -> None:
    """Carry a step out on made-up caches: each row must find all rows before it."""
    if copy := step.batch.copy:
        assert copy.source != copy.target
        cells[copy.target][: copy.rows] = cells[copy.source][: copy.rows]
    slots_seen = slots(step)
    assert step.batch.is_chunk or slots_seen == sorted(set(slots_seen))
    owners = {s.slot: s for s in step.sequences}
    for slot, position, token in rows(step):
        cells[slot][position] = token
        whole = [*owners[slot].prompt.tolist(), *said[owners[slot].task]]
        assert cells[slot][: position + 1] == whole[: position + 1]
