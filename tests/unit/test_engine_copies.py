"""KV rows copied from slot to slot: what follows them is computed as if they had been read there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import shards
from support.models import Models
from support.shards import chunk, decode

from antfarm.batch import Copy
from antfarm.errors import AntfarmError, Reason
from antfarm.model.gguf import GgufFile
from antfarm.types import RunOptions

PREFIX = [int(token) for token in np.random.default_rng(3).integers(0, 500, 70)]
REST = [11, 12, 13]


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("stages", [[1], [2], [1, 1]], ids=["unsplit", "tensor-2", "pipeline-2"])
def test_a_copied_prefix_is_as_good_as_a_read_one(models: Models, kind: str, stages: list[int]) -> None:
    options = RunOptions(context=96, slots=3, chunk=64, kv_type=kind)
    with GgufFile.open(models.path("tiny-llama")) as file:
        plan = shards.parts(file.facts, stages, heads=[2], ffn=[96])
        with shards.load(file, plan, options) as loaded:
            loaded.prompt(0, PREFIX, step=64)
            expected = loaded.logits(chunk(0, len(PREFIX), len(REST)), REST)
            # the source has moved on since; the target holds something else
            loaded.prompt(2, PREFIX[::-1], step=64)
            copied = replace(chunk(2, len(PREFIX), len(REST)), copy=Copy(0, 2, len(PREFIX)))
            np.testing.assert_array_equal(loaded.logits(copied, REST), expected)
            row = loaded.logits(decode([2], [9]), [7])
            again = replace(decode([1], [9]), copy=Copy(2, 1, 9))
            np.testing.assert_array_equal(loaded.logits(again, [7]), row)


@pytest.mark.parametrize("copy", [(0, 0, 1), (0, 3, 1), (3, 0, 1), (-1, 0, 1), (0, 1, 97), (0, 1, -1)])
def test_a_copy_outside_of_the_cache_is_refused(models: Models, copy: tuple[int, int, int]) -> None:
    with GgufFile.open(models.path("tiny-llama")) as file:
        options = RunOptions(context=96, slots=3, chunk=64)
        with shards.load(file, shards.parts(file.facts, [1]), options) as loaded:
            with pytest.raises(AntfarmError) as failure:
                loaded.logits(replace(decode([1], [9]), copy=Copy(*copy)), [1])
            assert failure.value.reason == Reason.INTERNAL
