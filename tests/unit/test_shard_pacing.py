"""Turns between prompts and answers, on made-up machines and their clocks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antfarm.shard.pacing import PAUSE, Kind, Pacer

Machine = Callable[[Kind, int], float]


def machine(sweep: float, row: float, answer: float) -> Machine:
    """Seconds of a step: a chunk reads all weights once and computes its rows; answers take `answer`."""
    return lambda kind, rows: sweep + row * rows if kind is Kind.PROMPT else answer


LLAMA = machine(0.030, 0.0150, 0.100)  # a model of 1 B parameters on one core; four streams


def step(pacer: Pacer, on: Machine, *, prompts: bool, answers: bool) -> tuple[Kind, int, float]:
    kind = pacer.prefers(prompts=prompts, answers=answers)
    rows = pacer.chunk(lanes=int(answers)) if kind is Kind.PROMPT else 4
    turn = pacer.begin(kind, rows, contested=prompts and answers)
    seconds = on(kind, rows)
    pacer.end(turn, seconds)
    return kind, rows, seconds


def contest(pacer: Pacer, on: Machine, prompt: int) -> list[tuple[Kind, int, float]]:
    """Steps while a prompt of so many tokens is read beside answers."""
    taken = []
    while prompt > 0:
        taken.append(step(pacer, on, prompts=True, answers=True))
        prompt -= taken[-1][1] if taken[-1][0] is Kind.PROMPT else 0
    return taken


def spent(steps: list[tuple[Kind, int, float]], kind: Kind) -> float:
    return sum(seconds for each, _, seconds in steps if each is kind)


def warm(on: Machine, share: float = 0.5, stages: int = 1) -> Pacer:
    """One prompt was read and is being answered."""
    pacer = Pacer(128, share, stages)
    step(pacer, on, prompts=True, answers=False)
    for _ in range(10):
        step(pacer, on, prompts=False, answers=True)
    return pacer


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_contested_time_is_divided_as_asked(share: float) -> None:
    pacer = warm(LLAMA, share)
    steps = contest(pacer, LLAMA, 2000)
    assert spent(steps, Kind.PROMPT) / sum(s for _, _, s in steps) == pytest.approx(share, abs=0.02)


def test_pauses_stay_short_and_chunks_as_long_as_that_allows() -> None:
    steps = contest(warm(LLAMA), LLAMA, 2000)
    chunks = [(rows, seconds) for kind, rows, seconds in steps if kind is Kind.PROMPT]
    assert max(seconds for _, seconds in chunks) <= 1.05 * PAUSE * 0.100
    assert median(rows for rows, _ in chunks) == 16  # 32 would take 0.51 s
    kinds = [kind for kind, _, _ in steps]
    assert (Kind.PROMPT, Kind.PROMPT) not in list(pairwise(kinds))


def test_a_pause_is_measured_in_gaps_which_are_longer_where_lanes_take_turns() -> None:
    pacer = warm(LLAMA, stages=3)
    contest(pacer, LLAMA, 500)
    assert [pacer.chunk(lanes=lanes) for lanes in (1, 2, 3, 0)] == [4, 32, 43, 43]


def test_alone_prompts_are_read_in_whole_chunks_and_owe_nothing() -> None:
    pacer = warm(LLAMA)
    alone = [step(pacer, LLAMA, prompts=True, answers=False) for _ in range(8)]
    assert {(kind, rows) for kind, rows, _ in alone} == {(Kind.PROMPT, 128)}
    step(pacer, LLAMA, prompts=False, answers=True)
    assert pacer.prefers(prompts=True, answers=True) is Kind.PROMPT


def test_short_prompts_one_after_the_other_get_no_more_than_their_share() -> None:
    pacer, steps = warm(LLAMA), []
    for number in range(600):  # a prompt of one chunk arrives at every third step
        kind, rows, seconds = step(pacer, LLAMA, prompts=number % 3 == 0, answers=True)
        steps.append((kind, rows, seconds))
    assert spent(steps, Kind.PROMPT) <= 0.55 * sum(s for _, _, s in steps)


def test_chunks_shrink_when_the_machine_slows_down() -> None:
    pacer = warm(LLAMA)
    contest(pacer, LLAMA, 500)
    slow = contest(pacer, machine(0.030, 0.0600, 0.100), 500)
    assert slow[-1][1] < 16
    fast = contest(pacer, machine(0.010, 0.0010, 0.100), 4000)
    assert max(rows for kind, rows, _ in fast if kind is Kind.PROMPT) == 128


@settings(max_examples=50, deadline=None)
@given(
    chunk=st.integers(1, 300),
    share=st.floats(0.2, 0.8),
    sweep=st.floats(0.005, 0.1),
    row=st.floats(1e-5, 0.01),
    answer=st.floats(0.01, 0.3),
    wants=st.lists(st.sampled_from([(True, True), (True, False), (False, True)]), max_size=60),
)
def test_any_machine_is_served(
    chunk: int, share: float, sweep: float, row: float, answer: float, wants: list[tuple[bool, bool]]
) -> None:
    pacer, on = Pacer(chunk, share), machine(sweep, row, answer)
    sizes = set()
    for prompts, answers in wants:
        kind, rows, _ = step(pacer, on, prompts=prompts, answers=answers)
        assert prompts if kind is Kind.PROMPT else answers
        if kind is Kind.PROMPT:
            assert 1 <= rows <= chunk and (answers or rows == chunk)
            sizes.add(rows)
    assert len(sizes) <= 8
    kinds = {step(pacer, on, prompts=True, answers=True)[0] for _ in range(500)}
    assert kinds == {Kind.PROMPT, Kind.ANSWER}
