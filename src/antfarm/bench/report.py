"""Results of benchmarks as Markdown pages: a table, and what is needed to judge it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antfarm.bench.batch import BatchResult, Figure
from antfarm.bench.serve import ServeResult
from antfarm.bench.soak import SoakResult
from antfarm.bench.split import SplitResult
from antfarm.bench.stats import Quantiles, Traffic


def split_page(result: SplitResult) -> str:
    head = ("split", "prompt tok/s", "x", "decode tok/s", "x", "wire bytes/token", "waited")
    rows = [
        (
            split.split,
            f"{split.prompt:.1f}",
            f"{split.prompt_ratio:.2f}",
            f"{split.decode:.1f}",
            f"{split.decode_ratio:.2f}",
            f"{split.wire_bytes:,.0f}",
            f"{split.waited:.0%}",
        )
        for split in result.splits
    ]
    return _page(
        f"{result.model}, split over hosts of one core",
        _table(head, rows),
        f"Prompt of {result.prompt_tokens} tokens, answer of {result.answer_tokens}, "
        f"{result.wire} on the wire; medians of {len(result.splits[0].rounds)} rounds in which the splits "
        "took turns; x is the ratio to unsplit within a round.",
        f"One core reads {result.read_bandwidth / 1e9:.1f} GB/s. A decoded token reads "
        f"{result.bytes_per_token / 1e6:.0f} MB of weights, so unsplit decoding reaches "
        f"{result.bandwidth_share:.0%} of that.",
        _made_by(result.version, result.machine),
    )


def serve_page(result: ServeResult) -> str:
    kind = f"conversations of {result.turns} turns" if result.turns else "plain completions"
    leaving = f"; {result.cancel:.0%} of them left early by the client" if result.cancel else ""
    counted = "the server's own counts" if result.counted else "one for each piece of text"
    ends = "to their full length" if result.ignores_eos else "until the model ends them"
    interrupted = ", interrupted" if result.interrupted else ""
    return _page(
        f"{result.model} at {result.url}, {result.streams} streams{interrupted}",
        *_traffic(result.traffic),
        f"{kind.capitalize()}, prompts of {result.prompt} tokens, answers of {result.answer} {ends}, seed "
        f"{result.seed}{leaving}. Tokens: {counted}. Rates are over {result.traffic.seconds:.1f} s, from the "
        "first request to the end of the last. Gaps are between two pieces of text of one answer.",
        _made_by(result.version, result.machine),
    )


def batch_page(result: BatchResult) -> str:
    rounds = len(result.figures[0].rounds)
    rows = [
        (f.scenario, f.name, f"{_number(f, f.value)} {f.unit}", ", ".join(_number(f, v) for v in f.rounds))
        for f in result.figures
    ]
    return _page(
        f"{result.model}: many at once, on hosts of one core",
        _table(("scenario", "figure", "median", "rounds"), rows, left=2),
        f"Medians of {rounds} rounds in which scenarios and splits took turns; x is a ratio within a round. "
        f"Streams: prompts of {result.prompt_tokens} tokens, answers of {result.answer_tokens}. "
        f"Disturbance: a prompt of {result.long_prompt} tokens while {result.disturbed} streams decode. "
        f"Chat: a first turn of about {result.history} tokens. Speeds are those that clients see, prompts "
        "included.",
        _made_by(result.version, result.machine),
    )


def soak_page(result: SoakResult) -> str:
    checks = [(check.what, "yes" if check.passed else "NO", check.found) for check in result.checks]
    loads = [
        (name, str(t.requests), str(t.cancelled), f"{t.answer_rate:.1f}", *_milliseconds(t.first_token))
        for name, t in result.traffic.items()
    ]
    sizes = [
        (r.process, f"{r.before / 2**20:.1f}", f"{r.after / 2**20:.1f}", f"{r.growth:+.1%}")
        for r in result.residents
    ]
    return _page(
        f"{result.model}: {result.clients} clients for {result.seconds:g} s: "
        f"{'passed' if result.passed else 'FAILED'}",
        _table(("check", "passed", "found"), checks, left=3),
        _table(
            ("split", "requests", "left early", "answer tok/s", *(f"TTFT {q} ms" for q in _QUANTILES)), loads
        ),
        _table(("process", "MiB after warm-up", "MiB at the end", "growth"), sizes),
        f"Random lengths; {result.cancel:.0%} of the clients leave before their answer is complete.",
        _made_by(result.version, result.machine),
    )


_QUANTILES = ("p50", "p95", "p99", "max")


def _traffic(traffic: Traffic) -> Iterable[str]:
    yield _table(
        ("requests", "answered", "left early", "cut off", "failed"),
        [
            tuple(
                str(count)
                for count in (
                    traffic.requests,
                    traffic.answered,
                    traffic.cancelled,
                    traffic.cut,
                    sum(traffic.errors.values()),
                )
            )
        ],
        left=0,
    )
    rates = [
        ("answers", f"{traffic.answer_tokens:,}", f"{traffic.answer_rate:.1f}"),
        ("prompts", f"{traffic.prompt_tokens:,}", f"{traffic.prompt_rate:.1f}"),
    ]
    if traffic.cached_tokens:
        rates.append(("of these from cache", f"{traffic.cached_tokens:,}", ""))
    yield _table(("total", "tokens", "tok/s"), rates)
    times = (
        ("time to first token", traffic.first_token),
        ("between tokens", traffic.gap),
        ("whole answer", traffic.latency),
    )
    yield _table(("ms", *_QUANTILES), [(name, *_milliseconds(q)) for name, q in times])
    if traffic.turns:
        yield _table(
            ("turn", "TTFT p50 ms"),
            [(str(turn), f"{seconds * 1e3:.1f}") for turn, seconds in enumerate(traffic.turns, 1)],
        )
    if traffic.errors:
        yield _table(
            ("error", "times", "such as"),
            [(code, str(times), traffic.messages[code]) for code, times in traffic.errors.items()],
            left=3,
        )


def _milliseconds(quantiles: Quantiles | None) -> tuple[str, ...]:
    if quantiles is None:
        return ("-",) * len(_QUANTILES)
    return tuple(f"{getattr(quantiles, name) * 1e3:.1f}" for name in _QUANTILES)


def _number(figure: Figure, value: float) -> str:
    return (
        f"{value:.0f}"
        if figure.unit == "tokens"
        else f"{value:.3f}"
        if figure.unit == "s"
        else f"{value:.2f}"
    )


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", *parts)) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """The first `left` columns hold words, the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def _made_by(version: str, machine: str) -> str:
    return f"antfarm {version} on {machine}."
