from __future__ import annotations

import pytest
import typer

from antfarm.bench.mix import STAY_S, TOKENS, Mix, Spread, token_ids, words, work
from antfarm.cli.benching import parse_spread

MIX = Mix(Spread(10, 40), Spread(5, 9), cancel=0.25, seed=3)


def test_a_seed_and_a_number_decide_everything() -> None:
    assert [work(MIX, n) for n in range(50)] == [work(MIX, n) for n in range(50)]
    other = Mix(MIX.prompt, MIX.answer, MIX.cancel, seed=4)
    assert [work(MIX, n) for n in range(50)] != [work(other, n) for n in range(50)]
    assert token_ids(1, 7, 20) == token_ids(1, 7, 20)
    assert words(1, 7, 20) == words(1, 7, 20)


def test_lengths_fill_their_range_and_the_share_that_leaves_is_kept() -> None:
    todo = [work(MIX, n) for n in range(2000)]
    assert {w.prompt for w in todo} == set(range(10, 41))
    assert {w.answer for w in todo} == set(range(5, 10))
    leaving = [(w.stay, w.answer) for w in todo if w.stay]
    assert len(leaving) == pytest.approx(500, abs=80)
    assert all(1 <= stay.pieces < answer and 0 <= stay.seconds <= STAY_S for stay, answer in leaving)
    assert not any(work(Mix(MIX.prompt, MIX.answer), n).stay for n in range(100))
    assert all(work(Mix(MIX.prompt, Spread(1, 1), cancel=1), n).stay for n in range(10)), "one token, too"


def test_prompts_share_no_beginning() -> None:
    prompts = [token_ids(0, n, 12) for n in range(200)]
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 200
    assert all(len(prompt) == 12 and set(prompt) <= set(TOKENS) for prompt in prompts)
    assert len(words(0, 1, 30).split(" ")) == 30


def test_ranges_as_they_are_typed() -> None:
    assert parse_spread("64:256") == (64, 256)
    assert parse_spread("64") == (64, 64)
    for wrong in ("", "256:64", "0:4", "a:b", "1:2:3", "-1:4"):
        with pytest.raises(typer.BadParameter):
            parse_spread(wrong)
