"""Comparing logits with the reference's log-probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from support.reference import Step
from support.shards import Shards, decode


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    x = logits.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


def follow(shards: Shards, prompt: list[int], steps: list[Step], *, chunk: int) -> NDArray[np.float64]:
    """Our log-probabilities [steps, vocabulary] along the reference's tokens."""
    logits = shards.prompt(0, prompt, step=chunk)
    out = [log_softmax(logits)]
    for at, (token, _) in enumerate(steps[:-1], start=len(prompt)):
        out.append(log_softmax(shards.logits(decode([0], [at]), [token])[0]))
    return np.array(out)


def distance(ours: NDArray[np.float64], steps: list[Step]) -> float:
    """The largest difference over the reference's top tokens of every step."""
    return max(
        abs(row[token] - value)
        for row, (_, top) in zip(ours, steps, strict=True)
        for token, value in top.items()
    )


def overlap(ours: NDArray[np.float64], steps: list[Step]) -> int:
    """How many of the reference's top tokens are among as many of ours, in the worst step."""
    return min(
        len(set(np.argsort(-row)[: len(top)].tolist()) & set(top))
        for row, (_, top) in zip(ours, steps, strict=True)
    )
