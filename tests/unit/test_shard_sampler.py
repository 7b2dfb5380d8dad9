"""The sampler, against a plain full-sort reference in float64 and against the frequencies it must show."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antfarm.errors import AntfarmError, Reason, RequestError
from antfarm.shard.sampler import Sampler, check, log_softmax
from antfarm.types import Sampling


def reference(row: np.ndarray, s: Sampling, prompt: list[int], answer: list[int]) -> dict[int, float]:
    """The distribution to draw from, token by token as the definitions say it."""
    logits = [float(x) for x in row]
    for token in set(prompt) | set(answer):
        x = logits[token]
        logits[token] = x / s.repetition_penalty if x > 0 else x * s.repetition_penalty
    for token, count in Counter(answer).items():
        logits[token] -= s.presence_penalty + s.frequency_penalty * count
    best = max(logits)
    if s.temperature == 0:
        return {logits.index(best): 1.0}
    weights = {i: math.exp((x - best) / s.temperature) for i, x in enumerate(logits)}
    order = sorted(weights, key=lambda i: -weights[i])
    if s.top_k:
        order = order[: s.top_k]
    whole, mass, kept = sum(weights[i] for i in order), 0.0, []
    for i in order:
        if mass >= s.top_p * whole and s.top_p < 1:
            break
        kept.append(i)
        mass += weights[i]
    kept = [i for i in kept if weights[i] >= s.min_p]
    whole = sum(weights[i] for i in kept)
    return {i: weights[i] / whole for i in kept}


def frequencies(row: np.ndarray, s: Sampling, prompt: list[int], answer: list[int], n: int) -> Counter[int]:
    """What n draws give, each at the same point of the answer."""
    drawn: Counter[int] = Counter()
    sampler = Sampler(s, prompt)
    for _ in range(n):
        sampler._counts = dict(Counter(answer))
        drawn[sampler.sample(row)] += 1
    return drawn


SETTINGS = [
    Sampling(),
    Sampling(temperature=0.7, top_k=5),
    Sampling(temperature=1.3, top_p=0.8),
    Sampling(temperature=1.5, min_p=0.2),
    Sampling(temperature=0.9, top_k=12, top_p=0.7, min_p=0.05),
    Sampling(temperature=2.0, top_k=1),
    Sampling(top_p=1e-6),
    Sampling(min_p=1.0),
    Sampling(top_k=1000, top_p=0.9999),
    Sampling(repetition_penalty=1.8, presence_penalty=0.5, frequency_penalty=0.3),
    Sampling(repetition_penalty=0.6, frequency_penalty=-0.4, top_p=0.9),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_draws_follow_the_reference_distribution(setting: Sampling) -> None:
    row = np.random.default_rng(3).normal(0, 1.5, 40).astype(np.float32)
    prompt, answer = [1, 2, 3, 17], [3, 4, 4, 4, 9]
    wanted = reference(row, setting, prompt, answer)
    n = 4000
    drawn = frequencies(row, msgspec.structs.replace(setting, seed=11), prompt, answer, n)
    assert set(drawn) <= set(wanted)
    chi = sum((drawn[i] - n * p) ** 2 / (n * p) for i, p in wanted.items())
    # a chi-square of k - 1 degrees has this mean and deviation; five deviations never happen by chance
    freedom = len(wanted) - 1
    assert chi <= freedom + 5 * math.sqrt(2 * freedom) + 1e-9


def test_draws_from_a_large_vocabulary_are_spread_as_its_probabilities() -> None:
    row = np.random.default_rng(4).normal(0, 1, 3000).astype(np.float32)
    shares = np.exp(row.astype(np.float64)).reshape(10, -1).sum(axis=1)
    shares /= shares.sum()
    sampler, n = Sampler(Sampling(seed=5), []), 5000
    drawn = np.bincount([sampler.sample(row) // 300 for _ in range(n)], minlength=10)
    assert ((drawn - n * shares) ** 2 / (n * shares)).sum() < 9 + 5 * math.sqrt(18)


logits = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=60)


@settings(max_examples=300, deadline=None)
@given(
    row=logits,
    top_k=st.integers(0, 8),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    temperature=st.floats(0.05, 3.0),
    seed=st.integers(-5, 5),
)
def test_a_draw_is_always_one_that_the_reference_allows(
    row: list[float], top_k: int, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    setting = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    array = np.array(row, np.float32)
    allowed = reference(array, setting, [], [])
    least = min(row[i] for i in allowed)
    token = Sampler(setting, []).sample(array)
    # float32 may decide a borderline case differently, and equal logits are interchangeable
    assert token in allowed or row[token] == pytest.approx(least, abs=1e-3)


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 1000)).astype(np.float32)

    def draw(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(seed=seed), [])
        return [sampler.sample(row) for row in rows]

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
    assert draw(None) != draw(None)
    assert draw(-1) == draw(-1)


def test_greedy_takes_the_best_and_leaves_the_row_alone() -> None:
    row = np.array([0.5, 3.0, 3.0, -1.0], np.float32)
    before = row.copy()
    sampler = Sampler(Sampling(temperature=0, repetition_penalty=2.0), [])
    assert [sampler.sample(row) for _ in range(3)] == [1, 2, 1]  # 3.0, then 3.0, then 1.5 each
    assert np.array_equal(row, before)


def test_a_tiny_temperature_is_greedy() -> None:
    row = np.array([1.0, 1.001, -50.0], np.float32)
    assert {Sampler(Sampling(temperature=1e-37), []).sample(row) for _ in range(20)} == {1}


@pytest.mark.parametrize("more", [{}, {"top_p": 0.5}, {"min_p": 1.0}, {"top_k": 2, "top_p": 1e-9}])
@pytest.mark.parametrize("temperature", [1e-39, 1e-60, 5e-324])
def test_a_temperature_that_float32_cannot_hold_is_greedy(temperature: float, more: dict[str, Any]) -> None:
    row = np.array([1, 1.5, -3, 1.4], np.float32)
    assert {Sampler(Sampling(temperature=temperature, **more), []).sample(row) for _ in range(20)} == {1}


def test_logits_of_minus_infinity_are_never_drawn() -> None:
    row = np.array([-np.inf, 0.0, -np.inf, 0.0], np.float32)
    sampler = Sampler(Sampling(seed=1), [])
    assert {sampler.sample(row) for _ in range(50)} == {1, 3}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_mean_nothing_are_an_error_and_no_token(bad: float, temperature: float) -> None:
    row = np.array([0.0, bad, 1.0], np.float32)
    with pytest.raises(AntfarmError) as failure:
        Sampler(Sampling(temperature=temperature), []).sample(row)
    assert failure.value.reason == Reason.INTERNAL


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", math.nan),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.nan),
        ("frequency_penalty", math.inf),
        ("max_tokens", 0),
        ("stop", ("a", "")),
        ("logprobs", 21),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=field):
        check(Sampling(**{field: value}))  # type: ignore[arg-type]


def test_usual_settings_are_fine() -> None:
    check(Sampling())
    check(Sampling(temperature=0, top_k=40, top_p=0.95, min_p=0.05, logprobs=20, max_tokens=1, stop=("x",)))


def test_log_probabilities_are_of_the_raw_logits() -> None:
    row = np.random.default_rng(5).normal(0, 4, 300).astype(np.float32)
    exact = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    chosen, best = log_softmax(row, 7, 5)
    assert chosen == pytest.approx(exact[7], abs=1e-5)
    order = np.argsort(exact)[::-1][:5]
    assert [i for i, _ in best] == list(order)
    assert [value for _, value in best] == pytest.approx(exact[order], abs=1e-5)
    assert log_softmax(row, 7, 0)[1] == []
    assert len(log_softmax(row[:3], 1, 20)[1]) == 3


@pytest.mark.parametrize(
    "setting", [Sampling(), Sampling(top_k=40, top_p=0.95, min_p=0.05), Sampling(top_p=0.95)], ids=str
)
def test_a_large_vocabulary_is_not_sorted(setting: Sampling) -> None:
    row = np.random.default_rng(1).normal(0, 2.5, 152_000).astype(np.float32)
    sampler = Sampler(setting, [])
    assert best_seconds(lambda: sampler.sample(row)) < best_seconds(lambda: np.argsort(row))


def best_seconds(work: Callable[[], object]) -> float:
    spent = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)


class Evens:
    """A grammar of even tokens, complete with 4."""

    def mask(self, row: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(row)) % 2, -np.inf, row).astype(np.float32)

    def accept(self, token: int) -> bool:
        return token == 4


def test_bias_is_added_before_all_else() -> None:
    row = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    assert Sampler(Sampling(temperature=0, logit_bias={0: 100.0}), []).sample(row) == 0
    assert Sampler(Sampling(temperature=0, logit_bias={3: -100.0, 2: -1.5}), []).sample(row) == 1
    assert row.tolist() == [1.0, 2.0, 3.0, 4.0]
    drawn = Sampler(Sampling(logit_bias={1: -100.0, 2: -100.0}, seed=1), [])
    assert {drawn.sample(row) for _ in range(200)} == {0, 3}
    with pytest.raises(RequestError, match="logit_bias"):
        check(Sampling(logit_bias={1: math.nan}))


@pytest.mark.parametrize(
    "sampling", [Sampling(top_k=7), Sampling(top_p=0.3), Sampling(min_p=0.5), Sampling()]
)
def test_a_grammar_bounds_what_is_drawn(sampling: Sampling) -> None:
    sampling = msgspec.structs.replace(sampling, repetition_penalty=1.3, presence_penalty=0.5, seed=3)
    random = np.random.default_rng(0)
    sampler, ends = Sampler(sampling, [1, 2], Evens()), 0
    for _ in range(300):
        token = sampler.sample(random.normal(size=9).astype(np.float32))
        assert token % 2 == 0
        assert sampler.complete == (token == 4)
        ends += sampler.complete
    assert ends
