"""From one row of logits to the next token. Pure: its only state is the task's own tokens and generator.

The order is the one that `transformers` and vLLM use: bias, penalties, temperature, top-k, top-p, min-p.
The penalties are theirs too: repetition (CTRL, Keskar et al. 2019) over the prompt and the answer,
presence and frequency (OpenAI) over the answer alone. Top-k, top-p and min-p each keep the best
tokens down to some probability, so their order matters only for what top-p counts as the whole:
the probability that top-k left.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antfarm.errors import AntfarmError, Reason, RequestError
from antfarm.types import Sampling

Row = NDArray[np.float32]

MAX_LOGPROBS = 20  # alternatives per token, as OpenAI's API allows

_TINY = float(np.finfo(np.float32).tiny)  # a lower temperature would be 0 in float32
_BLOCK = 512  # weights summed at once
_SEED_MASK = 2**64 - 1  # APIs take signed seeds; PCG64 takes none below zero


def check(sampling: Sampling) -> None:
    """Refuse settings that no distribution can follow (`invalid-request`, naming the field)."""
    wanted = {
        "temperature": (0.0 <= sampling.temperature < math.inf, "a finite number from 0 up"),
        "top_k": (sampling.top_k >= 0, "0 (off) or more"),
        "top_p": (0.0 < sampling.top_p <= 1.0, "above 0 and at most 1"),
        "min_p": (0.0 <= sampling.min_p <= 1.0, "from 0 to 1"),
        "repetition_penalty": (0.0 < sampling.repetition_penalty < math.inf, "a finite number above 0"),
        "presence_penalty": (math.isfinite(sampling.presence_penalty), "a finite number"),
        "frequency_penalty": (math.isfinite(sampling.frequency_penalty), "a finite number"),
        "max_tokens": (sampling.max_tokens is None or sampling.max_tokens > 0, "at least 1"),
        "stop": (all(sampling.stop), "strings of at least one character"),
        "logit_bias": (all(map(math.isfinite, sampling.logit_bias.values())), "finite numbers"),
        "logprobs": (0 <= (sampling.logprobs or 0) <= MAX_LOGPROBS, f"from 0 to {MAX_LOGPROBS}"),
    }
    for field, (fine, meaning) in wanted.items():
        if not fine:
            value = getattr(sampling, field)
            raise RequestError(Reason.INVALID_REQUEST, f"{field} is {value!r}, but must be {meaning}")


class Grammar(Protocol):
    """What tokens an answer may be of: `constraint.Constraint`."""

    def mask(self, row: Row) -> Row: ...
    def accept(self, token: int) -> bool: ...


class Sampler:
    """One task's choices. With the same seed, the same rows give the same tokens."""

    def __init__(self, sampling: Sampling, prompt: Collection[int], grammar: Grammar | None = None) -> None:
        self.complete = False  # by its grammar, the answer must end
        self._sampling = sampling
        self._grammar = grammar
        self._biased = _ids(sampling.logit_bias)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32, len(sampling.logit_bias))
        seed = sampling.seed
        self._random = np.random.Generator(np.random.PCG64(None if seed is None else seed & _SEED_MASK))
        self._prompt = frozenset(prompt)
        self._counts: dict[int, int] = {}  # of the answer's tokens

    def sample(self, row: Row) -> int:
        """Choose a token from the logits `row` [V], which is left as it is, and remember it.

        Raises `internal` when the row holds NaN or has no finite best: no token then means anything; and
        `invalid-request` when its grammar can be followed no further.
        """
        row = self._penalize(self._grammar.mask(row) if self._grammar else row)
        best = float(row.max())
        if not math.isfinite(best):
            raise AntfarmError(
                Reason.INTERNAL,
                f"the model computed {best} as its best logit",
                hint="the model file may be damaged; compare its checksum, or try another backend",
            )
        token = int(row.argmax()) if self._sampling.temperature < _TINY else self._draw(row, best)
        self._counts[token] = self._counts.get(token, 0) + 1
        if self._grammar:
            self.complete = self._grammar.accept(token)
        return token

    def _penalize(self, row: Row) -> Row:
        s = self._sampling
        if len(self._biased):
            row = row.copy()
            row[self._biased] += self._bias
        if s.repetition_penalty == 1 and s.presence_penalty == 0 and s.frequency_penalty == 0:
            return row
        row = row.copy()
        if s.repetition_penalty != 1:
            seen = _ids(self._prompt | self._counts.keys())
            logits = row[seen]
            penalty = np.float32(s.repetition_penalty)
            row[seen] = np.where(logits > 0, logits / penalty, logits * penalty)
        answer = _ids(self._counts.keys())
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        row[answer] -= s.presence_penalty + s.frequency_penalty * counts
        return row

    def _draw(self, row: Row, best: float) -> int:
        s = self._sampling
        ids: NDArray[np.intp] | None = None  # the tokens kept; None while that is all of them
        if 0 < s.top_k < len(row):
            ids = np.argpartition(row, -s.top_k)[-s.top_k :]
            row = row[ids]
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, rightly
            weights = np.exp((row - np.float32(best)) / np.float32(s.temperature))
        if s.top_p < 1 or s.min_p > 0:
            kept = _nucleus(weights, s.top_p, s.min_p)
            ids = kept if ids is None else ids[kept]
            weights = weights[kept]
        at = _pick(weights, self._random.random())
        return at if ids is None else int(ids[at])


def _ids(tokens: Collection[int]) -> NDArray[np.intp]:
    return np.fromiter(tokens, np.intp, len(tokens))


def _pick(weights: Row, uniform: float) -> int:
    """The index that a number in [0, 1) falls on when each index has its weight's share of the line.

    First among blocks, then within one: a running sum over a large vocabulary takes milliseconds.
    """
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64)
    mass = np.cumsum(blocks)
    at = uniform * mass[-1]
    block = _first_beyond(mass, at)
    inside = np.cumsum(weights[block * _BLOCK :][:_BLOCK], dtype=np.float64)
    return block * _BLOCK + _first_beyond(inside, at - (mass[block] - blocks[block]))


def _first_beyond(mass: NDArray[np.float64], at: float) -> int:
    """The first index whose running sum is above `at`; if rounding put `at` past them all, the last one
    that added something."""
    return int(min(np.searchsorted(mass, at, side="right"), np.searchsorted(mass, mass[-1])))


def _nucleus(weights: Row, top_p: float, min_p: float) -> NDArray[np.intp]:
    """Indices, best first, of the fewest `weights` that hold `top_p` of their sum, less those below
    `min_p` of the best weight (which is 1). At least the best is kept.

    Only what can be in the nucleus is sorted: weights under (1 - top_p) of the mean hold, all
    together, less than the 1 - top_p that may be left out.
    """
    total = float(weights.sum(dtype=np.float64))
    floor = max((1 - top_p) * total / len(weights), min_p)
    kept = np.flatnonzero(weights >= np.float32(min(floor, 1.0)))
    kept = kept[np.argsort(weights[kept])[::-1]]
    if top_p < 1:
        mass = np.cumsum(weights[kept], dtype=np.float64)
        kept = kept[: int(np.searchsorted(mass, top_p * total)) + 1]
    return kept


def log_softmax(row: Row, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """The natural-log probability of `token` in the logits `row` [V] as the model gave them, before
    penalties and temperature, and the `top` best (token, log probability), best first."""
    best = row.max()
    norm = float(best) + math.log(float(np.exp(row - best).sum(dtype=np.float64)))
    top = min(top, len(row))
    ids = np.argpartition(row, -top)[-top:] if top else np.empty(0, np.intp)
    ids = ids[np.argsort(row[ids])[::-1]]
    return float(row[token]) - norm, [(int(i), float(row[i]) - norm) for i in ids]
