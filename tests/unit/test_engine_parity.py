"""Every architecture and every way to split it computes what llama.cpp computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import PoolingType
from support import reference, shards
from support.logprobs import distance, follow, overlap
from support.models import Models

from antfarm.model import synthetic
from antfarm.model.gguf import GgufFile
from antfarm.model.tokenizer import Tokenizer
from antfarm.shard.pooling import Pool, pooling_of
from antfarm.types import Part, RunOptions

PROMPT = [int(token) for token in np.random.default_rng(7).integers(0, 500, 90)]
STEPS = 17  # the prompt's last row, and 16 decode steps
EXACT = RunOptions(context=512, kv_type="f32")  # f16 keys and values round differently in every kernel
SHAPES = ["tiny-llama", "tiny-llama-rich", "tiny-qwen2", "tiny-qwen3"]
SPLITS = ["unsplit", "tensor-2", "tensor-3", "pipeline-2", "pipeline-3", "hybrid"]


def plan(file: GgufFile, split: str) -> list[Part]:
    """Every share unequal."""
    facts = file.facts
    last = facts.kv_heads - 1
    return {
        "unsplit": lambda: shards.parts(facts, [1]),
        "tensor-2": lambda: shards.parts(facts, [2], heads=[1], ffn=[32]),
        "tensor-3": lambda: shards.parts(facts, [3], heads=[1, 2], ffn=[32, 96]),
        "pipeline-2": lambda: shards.parts(facts, [1, 1]),
        "pipeline-3": lambda: shards.parts(facts, [1, 1, 1]),
        "hybrid": lambda: shards.parts(facts, [2, 2], heads=[last], ffn=[facts.feed_forward - 32]),
    }[split]()


@pytest.fixture(scope="module")
def expected(models: Models) -> dict[str, list[reference.Step]]:
    """llama.cpp's answers, in plain F32 throughout."""
    return {
        shape: reference.top_logprobs(models.path(shape), PROMPT, STEPS, kv="f32", flash_attention=False)
        for shape in SHAPES
    }


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("shape", SHAPES)
def test_log_probabilities_are_those_of_llama_cpp(
    models: Models, expected: dict[str, list[reference.Step]], shape: str, split: str
) -> None:
    with GgufFile.open(models.path(shape)) as file, shards.load(file, plan(file, split), EXACT) as loaded:
        ours = follow(loaded, PROMPT, expected[shape], chunk=37)
    assert distance(ours, expected[shape]) < 1e-3
    assert overlap(ours, expected[shape]) == 10


@pytest.mark.parametrize(("kind", "factor"), [("linear", 2.0), ("yarn", 4.0)])
def test_rope_scaling(tmp_path: Path, kind: str, factor: float) -> None:
    path = tmp_path / "scaled.gguf"
    synthetic.write(path, replace(synthetic.SHAPES["tiny-llama"], rope_scaling=(kind, factor)), "f32")
    prompt = PROMPT * 2  # longer than the context before scaling
    steps = reference.top_logprobs(path, prompt, 4, kv="f32", flash_attention=False)
    with GgufFile.open(path) as file, shards.load(file, plan(file, "unsplit"), EXACT) as loaded:
        assert distance(follow(loaded, prompt, steps, chunk=128), steps) < 1e-3


# The bounds below are what rounding costs in these models, whose random weights amplify it: f16 keys and
# values (11 bits) move log-probabilities by about 0.02, and q8_0 (8 bits) by some eight times that.


def test_half_precision_cache_stays_close(models: Models) -> None:
    steps = reference.top_logprobs(models.path("tiny-llama"), PROMPT, STEPS, kv="f16")
    with GgufFile.open(models.path("tiny-llama")) as file, shards.load(file, plan(file, "unsplit")) as loaded:
        assert distance(follow(loaded, PROMPT, steps, chunk=128), steps) < 0.05


def test_quantized_cache_stays_close(models: Models) -> None:
    steps = reference.top_logprobs(models.path("tiny-llama"), PROMPT, STEPS, kv="f32", flash_attention=False)
    options = RunOptions(context=512, kv_type="q8_0")
    with (
        GgufFile.open(models.path("tiny-llama")) as file,
        shards.load(file, plan(file, "unsplit"), options) as loaded,
    ):
        assert distance(follow(loaded, PROMPT, steps, chunk=128), steps) < 0.3


def test_several_threads_compute_the_same(models: Models) -> None:
    with GgufFile.open(models.path("tiny-llama")) as file:
        results = []
        for threads in (1, 2):
            with shards.load(file, plan(file, "unsplit"), EXACT, threads=threads) as loaded:
                results.append(loaded.prompt(0, PROMPT))
    np.testing.assert_allclose(results[1], results[0], atol=1e-4)


@pytest.mark.parametrize("pooling", [PoolingType.MEAN, PoolingType.LAST])
def test_vectors_are_pooled_as_the_file_says(tmp_path: Path, pooling: PoolingType) -> None:
    path = tmp_path / "m.gguf"
    synthetic.write(path, replace(synthetic.SHAPES["tiny-llama"], pooling=pooling), "f32")
    texts = ["the ant", "and the other ants of the farm, one after the other, are not so wise"]
    llama = reference.Reference(path, kv="f32", flash_attention=False, pooling="UNSPECIFIED")
    theirs = llama.embeddings(texts)
    with GgufFile.open(path) as file, shards.load(file, plan(file, "hybrid"), EXACT) as loaded:
        tokenizer = Tokenizer.from_gguf(file)
        for text, expected in zip(texts, theirs, strict=True):
            tokens = tokenizer.encode(text)
            pool = Pool(pooling_of(file), len(tokens))
            for at in range(0, len(tokens), 7):
                piece = np.array(tokens[at : at + 7], np.int32)
                rows = loaded.forward(shards.chunk(0, at, len(piece)), piece)
                pool.add(loaded.lead.normalized(rows))
            assert pool.complete
            np.testing.assert_allclose(pool.vector(), expected, atol=2e-4)
