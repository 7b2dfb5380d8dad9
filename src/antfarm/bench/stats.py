"""What the traces of a load come to. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from antfarm.bench.stream import Trace


class Quantiles(msgspec.Struct, frozen=True):
    """Seconds; percentiles between two samples are interpolated."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


class Traffic(msgspec.Struct, frozen=True):
    """A load, summed up. Rates are over `seconds`, from the first request sent to the last one's end.

    Gaps are between two pieces of text of one answer; most servers send a piece for each token.
    """

    requests: int
    answered: int
    cancelled: int  # left by the client, as planned
    cut: int  # unfinished when the time was up, or the benchmark was interrupted
    errors: dict[str, int]  # by code
    messages: dict[str, str]  # one of each
    seconds: float
    prompt_tokens: int
    answer_tokens: int
    cached_tokens: int  # of the prompts, by the server's word
    prompt_rate: float  # tokens a second
    answer_rate: float
    first_token: Quantiles | None  # seconds from the request to the first piece
    gap: Quantiles | None
    latency: Quantiles | None  # of complete answers
    turns: tuple[float, ...] = ()  # median seconds to the first piece, by turn of a conversation


def summary(traces: Sequence[Trace], turns: int = 0) -> Traffic:
    outcomes = Counter(trace.outcome for trace in traces)
    failed = [trace for trace in traces if trace.outcome == "failed"]
    begun = [trace for trace in traces if trace.pieces]
    seconds = max((t.ended for t in traces), default=0.0) - min((t.sent for t in traces), default=0.0)
    prompt = sum(trace.prompt_tokens for trace in traces)
    answer = sum(trace.answer_tokens for trace in traces)
    by_turn = [[t.first for t in begun if t.turn == turn] for turn in range(turns)]
    return Traffic(
        requests=len(traces),
        answered=outcomes["answered"],
        cancelled=outcomes["cancelled"],
        cut=outcomes["cut"],
        errors=dict(Counter(trace.error for trace in failed)),
        messages={trace.error: trace.message for trace in failed},
        seconds=seconds,
        prompt_tokens=prompt,
        answer_tokens=answer,
        cached_tokens=sum(trace.cached_tokens for trace in traces),
        prompt_rate=prompt / seconds if seconds else 0.0,
        answer_rate=answer / seconds if seconds else 0.0,
        first_token=quantiles(trace.first for trace in begun),
        gap=quantiles(gaps(begun)),
        latency=quantiles(t.ended - t.sent for t in traces if t.outcome == "answered"),
        turns=tuple(float(np.median(times)) for times in by_turn if times),
    )


def gaps(traces: Iterable[Trace], since: float = -np.inf, until: float = np.inf) -> NDArray[np.float64]:
    """Seconds between pieces of one answer, where the gap reaches into `since .. until`."""
    found = [np.empty(0)]
    for trace in traces:
        times = np.array(trace.pieces)
        inside = (times[1:] > since) & (times[:-1] < until)
        found.append(np.diff(times)[inside])
    return np.concatenate(found)


def pieces_between(traces: Iterable[Trace], since: float, until: float) -> int:
    """Pieces of text that arrived in `since .. until`."""
    return sum(int(np.count_nonzero(_between(np.array(t.pieces), since, until))) for t in traces)


def quantiles(values: Iterable[float]) -> Quantiles | None:
    """None of no values."""
    sample = np.fromiter(values, np.float64)
    if not sample.size:
        return None
    p50, p95, p99, top = (float(q) for q in np.percentile(sample, (50, 95, 99, 100)))
    return Quantiles(int(sample.size), p50, p95, p99, top)


def _between(times: NDArray[np.float64], since: float, until: float) -> NDArray[np.bool_]:
    return (times > since) & (times <= until)
