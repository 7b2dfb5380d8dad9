"""What the planner counts, against what the engine really holds and takes."""

from pathlib import Path

import numpy as np
import pytest
from support.models import Models

from antfarm import cuts
from antfarm.batch import Batch
from antfarm.engine import Engine, arch
from antfarm.model.gguf import GgufFile
from antfarm.split import HostShare, SplitRequest, plan
from antfarm.split.memory import MIB
from antfarm.types import RunOptions


@pytest.mark.parametrize("name", arch.ARCHITECTURES)
def test_the_planner_knows_every_tensor_that_the_engine_holds(name: str) -> None:
    tensors = arch.ARCHITECTURES[name].tensors
    assert {*tensors.required, *tensors.optional} <= cuts.SIDES.keys()


@pytest.mark.parametrize("mode", ["tensor", "pipeline"])
@pytest.mark.parametrize("shape", ["tiny-llama-rich", "tiny-qwen2", "tiny-qwen3"])
def test_a_plan_holds_what_the_engine_takes(tmp_path: Path, shape: str, mode: str) -> None:
    with GgufFile.open(Models(tmp_path).path(shape)) as file:
        hosts = [HostShare("a", 4000 * MIB), HostShare("b", 4000 * MIB)]
        options = RunOptions(context=512, slots=2)
        placed = plan(file.facts, hosts, SplitRequest(2, mode), options)
        for part, planned in zip(placed.plan.parts, placed.plan.memory, strict=True):
            engine = Engine.load(file, part, placed.options, threads=1)
            try:
                taken = engine.memory
                rows = np.zeros((1, file.facts.embedding), np.float32)
                one = np.zeros(1, np.int32)
                reduce = (lambda partial, total: np.copyto(total, partial)) if part.ranks > 1 else None
                engine.forward(Batch(one, one, one), rows, reduce)
            finally:
                engine.close()
            assert 0.9 * planned.weights <= taken.weights <= planned.weights
            assert taken.kv_cache == planned.kv_cache
            assert taken.compute <= planned.compute <= taken.compute + 8 * MIB
