"""Parts in words."""

from __future__ import annotations

from collections.abc import Iterator

from antfarm.types import Part, Span


def part_text(part: Part) -> str:
    """As `antc ps` shows it, with inclusive ranges: "layers 0-14, KV heads 0-1, ffn 0-767".

    Where stages meet within a layer: "layers 0-6, attention of 7", then "feed-forward of 7, layers 8-15".
    """
    pieces = list(_layers(part.halves))
    if part.ranks > 1:
        pieces += [f"KV heads {_inclusive(part.kv_heads)}", f"ffn {_inclusive(part.feed_forward)}"]
    return ", ".join(pieces)


def _layers(halves: Span) -> Iterator[str]:
    if halves.lo % 2:
        yield f"feed-forward of {halves.lo // 2}"
    whole = Span(-(-halves.lo // 2), halves.hi // 2)
    if len(whole) > 0:
        yield f"layers {_inclusive(whole)}"
    if halves.hi % 2:
        yield f"attention of {halves.hi // 2}"


def _inclusive(span: Span) -> str:
    return f"{span.lo}-{span.hi - 1}" if len(span) > 1 else str(span.lo)
