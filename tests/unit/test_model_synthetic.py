"""Synthetic models: llama.cpp runs each of them, and their answers are worth comparing."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.models import Models
from support.reference import top_logprobs

from antfarm.model.gguf import GgufFile
from antfarm.model.synthetic import QUANTS, SHAPES, write

TINY = [name for name in SHAPES if name.startswith("tiny")]
PROMPT = [5, 7, 100, 200, 33, 44, 55]


@pytest.mark.parametrize("shape", TINY)
def test_llama_cpp_runs_every_shape(models: Models, shape: str) -> None:
    steps = top_logprobs(models.path(shape), PROMPT, 4)
    tokens = [token for token, _ in steps]
    assert len(set(tokens)) > 1
    assert not set(tokens) & set(PROMPT[-1:])  # the input does not simply come out again
    for _, best in steps:
        values = sorted(best.values(), reverse=True)
        assert values[0] > -4
        assert len(set(values)) == 10
        assert values[0] - values[-1] > 0.5


@pytest.mark.parametrize("quant", QUANTS)
def test_llama_cpp_runs_every_quantization(models: Models, quant: str) -> None:
    (step,) = top_logprobs(models.path("tiny-llama-wide", quant), PROMPT, 1)
    assert all(np.isfinite(value) for value in step[1].values())
    with GgufFile.open(models.path("tiny-llama-wide", quant)) as file:
        raw = file.read("blk.1.ffn_up.weight")
        values = gguf.dequantize(np.ascontiguousarray(raw), gguf.GGMLQuantizationType[quant.upper()])
    assert values.shape == (1024, 256)
    # A K-quant's scale is an f16 common to its block: small ones round.
    assert 0.7 < np.std(values) * 16 < 1.3
    assert abs(np.mean(values)) * 16 < 0.1


def test_rope_scaling_is_written_for_llama_cpp(models: Models, tmp_path: Path) -> None:
    base = SHAPES["tiny-llama"]
    plain = top_logprobs(models.path("tiny-llama"), PROMPT, 1)[0][1]
    for scaling in (("linear", 4.0), ("yarn", 4.0)):
        write(tmp_path / "m.gguf", dataclasses.replace(base, rope_scaling=scaling), "f32")
        assert top_logprobs(tmp_path / "m.gguf", PROMPT, 1)[0][1] != plain


def test_the_same_arguments_write_the_same_file(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write(tmp_path / name, SHAPES["tiny-qwen2"], "q8_0", seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c


def test_a_large_model_is_written_in_seconds(tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPES["llama-1b"], layers=2)
    start = time.process_time()
    write(tmp_path / "m.gguf", shape, "q4_0")
    assert time.process_time() - start < 5  # measured 0.5; 1.7 for all 16 layers
    assert (tmp_path / "m.gguf").stat().st_size > 100 << 20


def test_what_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no quantization 'q9_9'"):
        write(tmp_path / "m.gguf", SHAPES["tiny-llama"], "q9_9")
    with pytest.raises(ValueError, match="not whole blocks of 256"):
        write(tmp_path / "m.gguf", SHAPES["tiny-llama"], "q4_k")
    with pytest.raises(ValueError, match="too small"):
        write(tmp_path / "m.gguf", dataclasses.replace(SHAPES["tiny-llama"], vocabulary=200), "f32")
