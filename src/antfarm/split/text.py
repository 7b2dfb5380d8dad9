"""Parts in words."""

from __future__ import annotations

from antfarm.types import Part, Span


def part_text(part: Part) -> str:
    """As `antc ps` shows it, with inclusive ranges: "layers 0-14, KV heads 0-1, ffn 0-767"."""
    pieces = [f"layers {_inclusive(part.layers)}"]
    if part.ranks > 1:
        pieces += [f"KV heads {_inclusive(part.kv_heads)}", f"ffn {_inclusive(part.feed_forward)}"]
    return ", ".join(pieces)


def _inclusive(span: Span) -> str:
    return f"{span.lo}-{span.hi - 1}" if len(span) > 1 else str(span.lo)
