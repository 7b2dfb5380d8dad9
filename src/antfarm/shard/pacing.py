"""Whose turn is it, prompts' or answers', and how long may a prompt's chunk be? Pure: told the seconds.

While prompts are read and others are answered, both get their share of the time; it is measured, and
who has had less than its share is next. A chunk is as long as keeps the pause that it makes in the
answers within a few of their own gaps. With nobody to pause, chunks have their full length.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PAUSE = 4.0  # gaps between an answer's tokens that a chunk may take as long as; rows before it make it longer
_SMALLEST = 4  # rows of a chunk
_WEIGHT = 0.3  # of the newest measurement in a mean


class Kind(Enum):
    PROMPT = 1
    ANSWER = 2


@dataclass(frozen=True, slots=True)
class Turn:
    """A step that has been charged `seconds` in advance. Uncontested when only its kind was wanted."""

    kind: Kind
    rows: int
    seconds: float
    contested: bool


class Pacer:
    """Feeds on how long steps took. Lengths of chunks are powers of two, so that few graphs serve them."""

    def __init__(self, chunk: int, share: float, stages: int = 1) -> None:
        """`chunk` is the most rows that are read at once; where `stages` work at once, each has a part of it.
        `share` of contested time is the prompts'."""
        most = -(-chunk // stages)
        self._stages = stages
        self._sizes = [*_powers(_SMALLEST, most), most]
        self._share = share
        self._debt = 0.0  # weighted seconds that prompts had beyond their share
        self._answer: tuple[float, float] | None = None  # rows and seconds of a step of decoding, means
        self._chunks: dict[int, float] = {}  # seconds of a chunk, by size

    def prefers(self, *, prompts: bool, answers: bool) -> Kind:
        """Whose turn it is, of those who want one."""
        if not (prompts and answers):
            return Kind.PROMPT if prompts else Kind.ANSWER
        if self._answer is None:
            return Kind.ANSWER  # a chunk could not be measured against it
        return Kind.PROMPT if self._debt <= 0 else Kind.ANSWER

    def chunk(self, *, lanes: int) -> int:
        """The most rows that the next chunk may have. `lanes` of answers take turns, so that the gap between
        an answer's tokens is as many steps; 0 when nobody answers. Fewer lanes than stages wait for a chunk
        at several stages."""
        if not lanes:
            return self._sizes[-1]
        if not self._chunks or self._answer is None:
            return self._sizes[0]
        most = PAUSE * lanes * self._answer[1] * lanes / self._stages
        return next((size for size in reversed(self._sizes) if self._estimate(size) <= most), self._sizes[0])

    def begin(self, kind: Kind, rows: int, *, contested: bool) -> Turn:
        """A step is under way; it counts by its estimate until `end` tells."""
        if kind is Kind.PROMPT:
            seconds = self._estimate(rows) if self._chunks else 0.0
        else:
            seconds = self._answer[1] if self._answer else 0.0
        turn = Turn(kind, rows, seconds, contested)
        self._charge(turn, seconds)
        return turn

    def end(self, turn: Turn, seconds: float) -> None:
        """A step took so long, not counting what it waited for steps before it."""
        self._charge(turn, seconds - turn.seconds)
        if turn.kind is Kind.ANSWER:
            rows, mean = self._answer or (turn.rows, seconds)
            self._answer = _mean(rows, turn.rows), _mean(mean, seconds)
            return
        size = self._size(turn.rows)
        if 2 * turn.rows > size or size == self._sizes[0]:  # else it says little of that size
            scaled = seconds * size / turn.rows
            self._chunks[size] = _mean(self._chunks.get(size, scaled), scaled)

    def _charge(self, turn: Turn, seconds: float) -> None:
        """Answers pay off the prompts' debt even when nothing is to be read; no credit is saved up."""
        if turn.kind is Kind.PROMPT:
            self._debt += seconds * (1 - self._share) if turn.contested else 0.0
        else:
            step = self._answer[1] if self._answer else 0.0
            self._debt = max(self._debt - seconds * self._share, -step * self._share)

    def _estimate(self, rows: int) -> float:
        """Seconds of a chunk: measured, or on a line through a step of decoding and the nearest that was.

        Twice the rows take at most twice as long, which corrects what was measured in slower times.
        """
        size = self._size(rows)
        limits = [seconds * size / known for known, seconds in self._chunks.items() if known <= size]
        return min([*limits, self._on_line(size)])

    def _on_line(self, size: int) -> float:
        near = min(self._chunks, key=lambda known: (abs(known - size), known))
        seconds = self._chunks[near]
        at, base = self._answer or (0.0, 0.0)
        if near <= at or seconds <= base:
            return seconds * size / near
        return max(base, base + (seconds - base) * (size - at) / (near - at))

    def _size(self, rows: int) -> int:
        return next(size for size in self._sizes if size >= rows)


def _powers(smallest: int, below: int) -> list[int]:
    out = []
    while smallest < below:
        out.append(smallest)
        smallest *= 2
    return out


def _mean(old: float, new: float) -> float:
    return old + _WEIGHT * (new - old)
