"""Every type of weights that ggml has: loaded, cut at block boundaries, computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from support import reference, shards
from support.logprobs import distance, follow, overlap
from support.models import Models

from antfarm.engine import ggml
from antfarm.errors import AntfarmError, Reason
from antfarm.model import synthetic
from antfarm.model.gguf import GgufFile
from antfarm.types import ModelFacts, Part, RunOptions

PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 500, 60)]
STEPS = 5
WIDE = "tiny-llama-wide"  # rows of whole blocks of 256
OTHERS = sorted(kind for kind in ggml.TYPES if ggml.is_weight_type(kind) and kind not in synthetic.QUANTS)


def shape_for(quant: str) -> str:
    block, _ = GGML_QUANT_SIZES[GGMLQuantizationType[quant.upper()]]
    return WIDE if block > 64 else "tiny-llama"


def tensor_2(facts: ModelFacts) -> list[Part]:
    """The first cut that is on block boundaries of heads and of the feed-forward."""
    wide = facts.feed_forward == synthetic.SHAPES[WIDE].feed_forward
    return shards.parts(facts, [2], heads=[2 if wide else 1], ffn=[256 if wide else 32])


@pytest.mark.parametrize("quant", synthetic.QUANTS)
def test_quantized_weights_agree_with_llama_cpp(models: Models, quant: str) -> None:
    """Loosely: each kernel rounds activations in its own way, which random weights amplify."""
    path = models.path(shape_for(quant), quant)
    steps = reference.top_logprobs(path, PROMPT, STEPS)
    with GgufFile.open(path) as file:
        for plan in (shards.parts(file.facts, [1]), tensor_2(file.facts)):
            with shards.load(file, plan) as loaded:
                ours = follow(loaded, PROMPT, steps, chunk=37)
                assert distance(ours, steps) < 0.5
                assert overlap(ours, steps) >= 7


def zeros(quant: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose matrices are zero blocks, for types that the writer has no values for."""
    monkeypatch.setattr(synthetic, "QUANTS", (quant,))
    monkeypatch.setattr(
        synthetic._Weights, "_pool", lambda self, _: np.zeros((synthetic._POOL, self._group_bytes), np.uint8)
    )
    synthetic.write(path, synthetic.SHAPES[WIDE], quant)
    return path


@pytest.mark.parametrize("quant", OTHERS)
def test_types_without_a_writer_load_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quant: str
) -> None:
    path = zeros(quant, tmp_path / "zeros.gguf", monkeypatch)
    with GgufFile.open(path) as file:
        for plan in (shards.parts(file.facts, [1]), tensor_2(file.facts)):
            with shards.load(file, plan) as loaded:
                np.testing.assert_array_equal(loaded.prompt(0, PROMPT), 0)


@pytest.mark.parametrize("quant", ["q8_1", "i8", "f64"])
def test_types_that_are_not_for_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quant: str
) -> None:
    path = zeros(quant, tmp_path / "zeros.gguf", monkeypatch)
    with (
        GgufFile.open(path) as file,
        pytest.raises(AntfarmError) as raised,
        shards.load(file, shards.parts(file.facts, [1])),
    ):
        pass
    assert raised.value.reason == Reason.UNSUPPORTED_TENSOR_TYPE
    assert quant in raised.value.message


def test_repacked_weights_compute_what_plain_ones_do(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.path("tiny-llama", "q4_0")
    with GgufFile.open(path) as file:
        plan = shards.parts(file.facts, [1])
        with shards.load(file, plan) as loaded:
            repacked = loaded.prompt(0, PROMPT)
        monkeypatch.setattr(ggml.Backend, "extra_buffer_types", lambda self: [])
        with shards.load(file, plan, RunOptions(context=512)) as loaded:
            plain = loaded.prompt(0, PROMPT)
    assert np.corrcoef(repacked, plain)[0, 1] > 0.999
