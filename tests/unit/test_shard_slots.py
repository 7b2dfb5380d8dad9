"""Slots: a prompt takes the one that spares it most, and nobody's rows are lost needlessly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from antfarm.batch import Copy
from antfarm.shard.slots import LEAST_COPY, Seat, Slots

SYSTEM, CHAT, OTHER = [1] * 20, [2] * 30, [3] * 30


def tokens(*parts: list[int]) -> NDArray[np.int32]:
    return np.array([token for part in parts for token in part], np.int32)


def read(slots: Slots, *parts: list[int]) -> Seat:
    """Take a slot and read the whole prompt into it."""
    prompt = tokens(*parts)
    seat = slots.take(prompt)
    slots.fill(seat.slot, prompt[seat.reused :])
    return seat


def test_a_second_turn_takes_the_slot_of_the_first() -> None:
    slots = Slots(3, 200)
    first = read(slots, SYSTEM, CHAT)
    slots.fill(first.slot, 5)
    slots.give_back(first.slot, sound=True)
    assert read(slots, SYSTEM, CHAT, [5, 6]) == Seat(first.slot, 51, None)


def test_the_last_token_is_always_read() -> None:
    slots = Slots(1, 200)
    slots.give_back(read(slots, CHAT).slot, sound=True)
    assert read(slots, CHAT) == Seat(0, 29, None)
    slots.give_back(0, sound=True)
    assert read(slots, CHAT[:1]) == Seat(0, 0, None)


def test_a_busy_slots_prefix_is_copied() -> None:
    slots = Slots(2, 200)
    assert read(slots, SYSTEM, CHAT) == Seat(0, 0, None)
    assert read(slots, SYSTEM, OTHER) == Seat(1, 20, Copy(0, 1, 20))
    assert (slots.rows, slots.free) == (100, 0)


def test_a_few_rows_are_not_worth_a_copy() -> None:
    slots = Slots(2, 200)
    read(slots, SYSTEM[: LEAST_COPY - 1], CHAT)
    assert read(slots, SYSTEM[: LEAST_COPY - 1], OTHER) == Seat(1, 0, None)


def test_a_long_history_is_kept_beside_a_prompt_that_shares_its_beginning() -> None:
    slots = Slots(2, 200)
    slots.give_back(read(slots, SYSTEM, CHAT).slot, sound=True)
    assert read(slots, SYSTEM, OTHER) == Seat(1, 20, Copy(0, 1, 20))
    assert read(slots, SYSTEM, CHAT, [9]) == Seat(0, 50, None)


def test_the_slot_that_was_not_used_for_longest_is_overwritten() -> None:
    slots = Slots(3, 200)
    for slot, prompt in enumerate((SYSTEM, CHAT, OTHER)):
        assert read(slots, prompt).slot == slot
    for slot in (1, 0, 2):
        slots.give_back(slot, sound=True)
    assert read(slots, [8] * 10).slot == 1
    slots.give_back(1, sound=True)
    assert read(slots, [9] * 10).slot == 0


def test_rows_that_mean_nothing_serve_nobody() -> None:
    slots = Slots(1, 200)
    slots.give_back(read(slots, CHAT).slot, sound=False)
    assert read(slots, CHAT) == Seat(0, 0, None)


def test_an_overwritten_slot_is_matched_by_what_it_holds_now() -> None:
    slots = Slots(1, 200)
    slots.give_back(read(slots, CHAT, SYSTEM).slot, sound=True)
    seat = slots.take(tokens(CHAT, OTHER))  # cancelled before a chunk was read
    assert seat == Seat(0, 30, None)
    slots.give_back(0, sound=True)
    assert slots.take(tokens(CHAT, SYSTEM)) == Seat(0, 30, None)


@given(
    count=st.integers(1, 4),
    prompts=st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=30), min_size=1, max_size=30),
    choices=st.randoms(use_true_random=False),
)
def test_what_is_reused_is_there(count: int, prompts: list[list[int]], choices: object) -> None:
    """Against made-up cells, and never less than a free slot offers."""
    rng = np.random.default_rng(choices.getrandbits(32))  # type: ignore[attr-defined]
    slots = Slots(count, 40)
    cells = np.zeros((count, 40), np.int32)
    taken: list[int] = []
    for prompt in prompts:
        while len(taken) == count or (taken and rng.random() < 0.4):
            slots.give_back(taken.pop(rng.integers(len(taken))), sound=True)
        seat = slots.take(tokens(prompt))
        assert seat.slot not in taken and seat.reused < len(prompt)
        if seat.copy:
            cells[seat.slot, : seat.copy.rows] = cells[seat.copy.source, : seat.copy.rows]
            assert seat.copy == Copy(seat.copy.source, seat.slot, seat.reused)
        assert cells[seat.slot, : seat.reused].tolist() == prompt[: seat.reused]
        slots.fill(seat.slot, tokens(prompt)[seat.reused :])
        cells[seat.slot, : len(prompt)] = prompt
        taken.append(seat.slot)
    assert slots.free == count - len(taken)
