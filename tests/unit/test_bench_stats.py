from __future__ import annotations

from array import array

import numpy as np
import pytest

from antfarm.bench.residents import Resident, compared
from antfarm.bench.soak import together
from antfarm.bench.stats import gaps, pieces_between, quantiles, summary
from antfarm.bench.stream import Outcome, Trace


def trace(sent: float, *pieces: float, ended: float, outcome: Outcome = "answered", **more: object) -> Trace:
    return Trace(sent=sent, pieces=array("d", pieces), ended=ended, outcome=outcome, **more)  # type: ignore[arg-type]


def counts(prompt: int, answer: int, cached: int = 0) -> dict[str, object]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def test_percentiles_are_interpolated() -> None:
    found = quantiles(float(n) for n in range(101))
    assert found is not None
    assert (found.count, found.p50, found.p95, found.p99, found.max) == (101, 50, 95, 99, 100)
    halfway = quantiles([1.0, 2.0])
    assert halfway is not None and halfway.p50 == 1.5 and halfway.p95 == pytest.approx(1.95)
    assert quantiles([]) is None


def test_a_load_is_summed_up() -> None:
    traffic = summary(
        [
            trace(10.0, 11.0, 11.5, 13.5, ended=14.0, usage=counts(100, 4, cached=64)),
            trace(12.0, 15.0, ended=20.0, outcome="cancelled", prompt=50),
            trace(12.0, ended=12.5, outcome="failed", prompt=9, error="429 queue-full", message="later"),
            trace(13.0, ended=13.5, outcome="failed", error="429 queue-full", message="later"),
            trace(19.0, ended=20.0, outcome="cut", prompt=50),
        ]
    )
    assert (traffic.requests, traffic.answered, traffic.cancelled, traffic.cut) == (5, 1, 1, 1)
    assert traffic.errors == {"429 queue-full": 2} and traffic.messages == {"429 queue-full": "later"}
    assert traffic.seconds == 10.0
    assert (traffic.answer_tokens, traffic.answer_rate) == (5, 0.5), "4 by the server's count, 1 piece"
    assert (traffic.prompt_tokens, traffic.cached_tokens) == (150, 64), "a prompt counts once it is read"
    assert traffic.first_token and (traffic.first_token.count, traffic.first_token.max) == (2, 3.0)
    assert traffic.gap and (traffic.gap.count, traffic.gap.max) == (2, 2.0)
    assert traffic.latency and (traffic.latency.count, traffic.latency.p50) == (1, 4.0)


def test_no_requests_are_no_traffic() -> None:
    traffic = summary([])
    assert (traffic.requests, traffic.seconds, traffic.answer_rate, traffic.gap) == (0, 0.0, 0.0, None)


def test_turns_are_kept_apart() -> None:
    traces = [trace(0, 4, ended=5, turn=0), trace(0, 2, ended=5, turn=0), trace(5, 5.5, ended=6, turn=1)]
    assert summary(traces, turns=3).turns == (3.0, 0.5)
    assert summary(traces).turns == ()


def test_a_gap_counts_where_it_reaches_into_the_window() -> None:
    traces = [trace(0, 1, 2, 5, 6, ended=7), trace(0, 1, 3.5, ended=7), trace(0, ended=7, outcome="failed")]
    assert sorted(gaps(traces)) == [1, 1, 2.5, 3]
    assert sorted(gaps(traces, 3, 4)) == [2.5, 3], "both were open then"
    assert sorted(gaps(traces, 5, 9)) == [1]
    assert pieces_between(traces, 1, 5) == 3
    assert gaps([]).size == 0 and gaps([]).dtype == np.float64


def test_a_slot_that_is_lost_shows_in_what_runs_together() -> None:
    full = [trace(0, 1, 9, ended=9), trace(0, 2, 8, ended=9), trace(0, 3, 7, ended=9)]
    assert together(full) == 3
    queued = [*full[:2], trace(0, 9.5, 12, ended=12)]
    assert together(queued) == 2
    assert together([trace(0, ended=1, outcome="failed")]) == 0


def test_memory_after_warm_up_is_held_against_the_end() -> None:
    def sizes(size: float) -> int:
        return int(size * 2**20)

    warming = [(float(t), sizes(min(100, 20 * t))) for t in range(101)]  # full after 5 % of the time
    assert compared("a", warming) == Resident("a", sizes(100), sizes(100))
    leaking = [(float(t), sizes(100 + t)) for t in range(101)]
    leak = compared("b", leaking)
    assert leak.growth == pytest.approx(60 / 135, rel=0.01)
    assert not leak.flat(0.02) and leak.flat(0.5)
    small = Resident("c", sizes(5), sizes(5.9))
    assert small.growth > 0.02 and small.flat(0.02), "less than a MiB is no leak"
    assert compared("d", [(1.0, 7)]) == Resident("d", 7, 7)
