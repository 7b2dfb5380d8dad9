"""Results of benchmarks as a Markdown page."""

from __future__ import annotations

from antfarm.bench.split import SplitResult


def markdown(result: SplitResult) -> str:
    """The table of one `bench split` run, with what is needed to judge it."""
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
    lines = [
        f"# {result.model}, split over hosts of one core",
        "",
        "| " + " | ".join(head) + " |",
        "| --- " + "| ---: " * (len(head) - 1) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        f"Prompt of {result.prompt_tokens} tokens, answer of {result.answer_tokens}, "
        f"{result.wire} on the wire; medians of {len(result.splits[0].rounds)} rounds in which the splits "
        "took turns; x is the ratio to unsplit within a round.",
        "",
        f"One core reads {result.read_bandwidth / 1e9:.1f} GB/s. A decoded token reads "
        f"{result.bytes_per_token / 1e6:.0f} MB of weights, so unsplit decoding reaches "
        f"{result.bandwidth_share:.0%} of that.",
        "",
        f"antfarm {result.version} on {result.machine}.",
    ]
    return "\n".join(lines) + "\n"
