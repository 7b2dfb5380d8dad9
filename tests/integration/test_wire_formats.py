"""Activations rounded on the wire: answers still come, and log-probabilities move by little."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
from msgspec.structs import replace
from support.antc import FREE_PORTS, Antc
from support.models import Models, smollm2
from support.shard_process import EXACT, Replica, replica

from antfarm.types import Sampling, WireFormat

TOP = 10
PROMPTS = ("The ants of the farm", "and the wise ant said to another: ", "One token, many hosts, one answer.")
FIRST = Sampling(temperature=0, max_tokens=1, ignore_eos=True, logprobs=TOP)
SPLITS = {"tensor-2": (1, 2), "pipeline-2": (2, 1)}

Record = Callable[[str, object], None]


def likeliest(one: Replica) -> list[dict[int, float]]:
    """The log-probabilities of the likeliest tokens after each prompt."""
    answers = [one.ask(prompt, FIRST, task=f"task-{n}") for n, prompt in enumerate(PROMPTS)]
    return [{top.token: top.logprob for top in answer.logprobs[0].top} for answer in answers]


def effect(path: Path, folder: Path, split: str, wire: WireFormat) -> list[float]:
    """How far the wire's rounding moves log-probabilities, of tokens that are likely with and without it."""
    stages, ranks = SPLITS[split]
    seen = []
    for format in (WireFormat.F32, wire):
        place = folder / format
        place.mkdir()
        options = replace(EXACT, wire=format)
        with replica(path, place, stages=stages, ranks=ranks, options=options) as one:
            seen.append(likeliest(one.ready()))
    moved = []
    for exact, rounded in zip(*seen, strict=True):
        shared = exact.keys() & rounded.keys()
        assert len(shared) >= TOP - 2
        assert max(exact, key=exact.__getitem__) == max(rounded, key=rounded.__getitem__)
        moved += [abs(exact[token] - rounded[token]) for token in shared]
    return moved


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("wire", "most"), [(WireFormat.F16, 0.01), (WireFormat.Q8, 0.15)])
def test_exact_weights(
    models: Models, tmp_path: Path, split: str, wire: WireFormat, most: float, record_property: Record
) -> None:
    moved = max(effect(models.path("tiny-llama"), tmp_path, split, wire))
    record_property("largest log-probability difference", moved)
    assert 0 < moved < most


@pytest.mark.skipif(smollm2() is None, reason="the real model is not installed")
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("wire", "most"), [(WireFormat.F16, 0.2), (WireFormat.Q8, 0.3)])
def test_the_real_model(
    tmp_path: Path, split: str, wire: WireFormat, most: float, record_property: Record
) -> None:
    """Its kernels round activations to 8 bits themselves: on an exact wire, splits already differ by 0.05."""
    path = smollm2()
    assert path
    moved = fmean(effect(path, tmp_path, split, wire))
    record_property("mean log-probability difference", moved)
    assert 0 < moved < most


def test_a_colony_answers_over_a_rounded_wire(tmp_path: Path, models: Models) -> None:
    antc = Antc(tmp_path / "home")
    try:
        antc.run("up", "--foragers", "2", *FREE_PORTS)
        antc.run("load", models.path("tiny-llama"), "--split", "2", "--wire", "q8", "--prefill-share", "0.3")
        answer = antc.json("ask", "Hello?", "--max-tokens", "6", "--temperature", "0")
        assert answer["usage"]["completion_tokens"] == 6
    finally:
        assert not antc.close()
