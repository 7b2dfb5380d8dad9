"""Every type of weights that ggml has: loaded, cut at block boundaries, computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from support import reference, shards
from support.logprobs import distance, follow, overlap
from support.models import Models
from support.shards import Shards

from antfarm.engine import ggml
from antfarm.errors import AntfarmError, Reason
from antfarm.model import synthetic
from antfarm.model.gguf import GgufFile
from antfarm.types import ModelFacts, Part, RunOptions

PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 500, 60)]
STEPS = 5
WIDE = "tiny-llama-wide"  # rows of whole blocks of 256
DEVIATIONS = {"iq1_m": 6.8, "nvfp4": 2.8, "q1_0": 1.0}  # of random blocks whose scale is 1
OTHERS = sorted(kind for kind in ggml.TYPES if ggml.is_weight_type(kind) and kind not in synthetic.QUANTS)


Pool = Callable[[float], NDArray[np.uint8]]


def shape_for(quant: str) -> str:
    block, _ = GGML_QUANT_SIZES[GGMLQuantizationType[quant.upper()]]
    return WIDE if block > 64 else "tiny-llama"


def tensor_2(facts: ModelFacts) -> list[Part]:
    """The first cut that is on block boundaries of heads and of the feed-forward."""
    wide = facts.feed_forward == synthetic.SHAPES[WIDE].feed_forward
    return shards.parts(facts, [2], heads=[2 if wide else 1], ffn=[256 if wide else 32])


def agrees_with_llama_cpp(path: Path) -> None:
    """Loosely: each kernel rounds activations in its own way, which random weights amplify."""
    steps = reference.top_logprobs(path, PROMPT, STEPS)
    with GgufFile.open(path) as file:
        for plan in (shards.parts(file.facts, [1]), tensor_2(file.facts)):
            with shards.load(file, plan) as loaded:
                ours = follow(loaded, PROMPT, steps, chunk=37)
                assert distance(ours, steps) < 0.5
                assert overlap(ours, steps) >= 7


@pytest.mark.parametrize("quant", synthetic.QUANTS)
def test_quantized_weights_agree_with_llama_cpp(models: Models, quant: str) -> None:
    agrees_with_llama_cpp(models.path(shape_for(quant), quant))


def written(path: Path, quant: str, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in a type that the writer has no values for: its blocks come from `pool(deviation)`."""
    monkeypatch.setattr(synthetic, "QUANTS", (quant,))
    monkeypatch.setattr(synthetic._Weights, "_pool", lambda self, deviation: pool(deviation))
    synthetic.write(path, synthetic.SHAPES[WIDE], quant)
    return path


def blocks(quant: str, deviation: float) -> NDArray[np.uint8]:
    """Random bits with scales that give values of this deviation."""
    random = np.random.default_rng(1)
    size = ggml.row_bytes(quant, ggml.block_values(quant))
    raw = random.integers(0, 256, (synthetic._POOL, size), np.uint8)
    scales = deviation / DEVIATIONS[quant] * random.uniform(0.7, 1.3, len(raw))
    if quant == "nvfp4":  # floats of 3 bits after the point, for each 16 values
        raw[:, :4] = np.round(8 * (np.log2(scales) + 7))[:, None] + random.integers(-4, 5, (len(raw), 4))
        return raw
    halves = scales.astype(np.float16).view(np.uint16)[:, None]
    if quant == "q1_0":
        raw[:, :2] = halves.view(np.uint8)
    else:  # iq1_m: four bits of it above the twelve of each of four words
        words = raw[:, 48:].view(np.uint16)
        words &= 0x0FFF
        words |= (halves << np.array([12, 8, 4, 0], np.uint16)) & 0xF000
    return raw


@pytest.mark.parametrize("quant", OTHERS)
def test_types_without_a_writer_agree_with_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quant: str
) -> None:
    agrees_with_llama_cpp(written(tmp_path / "m.gguf", quant, partial(blocks, quant), monkeypatch))


@pytest.mark.parametrize("quant", ["q8_1", "i8", "f64"])
def test_types_that_are_not_for_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quant: str
) -> None:
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[quant.upper()]]
    size = block_bytes if block > 1 else synthetic._GROUP * block_bytes
    zeros = np.zeros((synthetic._POOL, size), np.uint8)
    path = written(tmp_path / "m.gguf", quant, lambda _: zeros, monkeypatch)
    with (
        GgufFile.open(path) as file,
        pytest.raises(AntfarmError) as raised,
        shards.load(file, shards.parts(file.facts, [1])),
    ):
        pass
    assert raised.value.reason == Reason.UNSUPPORTED_TENSOR_TYPE
    assert quant in raised.value.message


def layouts(loaded: Shards) -> set[str]:
    """Where the lead's matrices lie, those aside that rows are looked up in."""
    weights = loaded.lead._layers._model.weights
    return {
        ggml.native.ggml_backend_buffer_name(tensor.contents.buffer).decode()  # type: ignore[attr-defined]
        for name, tensor in weights.items()
        if "norm" not in name and name != "token_embd.weight"
    }


def test_repacked_weights_compute_what_plain_ones_do(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ggml can repack them, they are: with AVX2 it has a layout for q4_0."""
    path = models.path("tiny-llama", "q4_0")
    with GgufFile.open(path) as file:
        plan = shards.parts(file.facts, [1])
        with shards.load(file, plan) as loaded:
            repacked, where = loaded.prompt(0, PROMPT), layouts(loaded)
        monkeypatch.setattr(ggml.Backend, "extra_buffer_types", lambda self: [])
        with shards.load(file, plan, RunOptions(context=512)) as loaded:
            plain = loaded.prompt(0, PROMPT)
            assert layouts(loaded) == {"CPU"}
    if {"REPACK", "AVX2"} <= ggml.cpu_features().keys():
        assert where and "CPU" not in where
    assert np.corrcoef(repacked, plain)[0, 1] > 0.999
