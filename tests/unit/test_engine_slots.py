"""Slots do not disturb each other, and how rows are batched does not matter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from support import shards
from support.models import Models
from support.shards import Shards, chunk, decode

from antfarm.batch import Batch
from antfarm.engine import layers
from antfarm.engine.step import StepShape
from antfarm.errors import AntfarmError, Reason
from antfarm.model.gguf import GgufFile
from antfarm.types import RunOptions

CONTEXT, SLOTS = 300, 4  # a context that is no multiple of the KV bucket
OPTIONS = RunOptions(context=CONTEXT, slots=SLOTS, chunk=64, kv_type="f32")
CLOSE = 1e-4


@pytest.fixture(scope="module")
def file(models: Models) -> Iterator[GgufFile]:
    with GgufFile.open(models.path("tiny-llama")) as opened:
        yield opened


@pytest.fixture(params=[[1], [2]], ids=["unsplit", "tensor-2"])
def loaded(file: GgufFile, request: pytest.FixtureRequest) -> Iterator[Shards]:
    with shards.load(file, shards.parts(file.facts, request.param, heads=[2], ffn=[96]), OPTIONS) as each:
        yield each


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 500, count)]


def alone(loaded: Shards, slot: int, sequence: list[int]) -> NDArray[np.float32]:
    return loaded.prompt(slot, sequence, step=64)


@pytest.mark.parametrize("step", [1, 7, 63])
def test_chunk_lengths_do_not_matter(loaded: Shards, step: int) -> None:
    sequence = tokens(1, 100)
    np.testing.assert_allclose(loaded.prompt(0, sequence, step=step), alone(loaded, 1, sequence), atol=CLOSE)


def test_batched_decode_is_single_decode(loaded: Shards) -> None:
    sequences = {slot: tokens(10 + slot, 30 + 40 * slot) for slot in range(SLOTS)}
    for slot, sequence in sequences.items():
        alone(loaded, slot, sequence[:-1])
    together = loaded.logits(
        decode(list(sequences), [len(each) - 1 for each in sequences.values()]),
        [each[-1] for each in sequences.values()],
    )
    for slot, sequence in sequences.items():
        np.testing.assert_allclose(together[slot], alone(loaded, slot, sequence), atol=CLOSE)


def test_idle_slots_between_active_ones_are_untouched(loaded: Shards) -> None:
    idle, first, last = tokens(20, 50), tokens(21, 20), tokens(22, 90)
    expected = alone(loaded, 1, idle)
    again = loaded.logits(decode([1], [50]), [3])
    alone(loaded, 0, first[:-1])
    alone(loaded, 3, last[:-1])
    together = loaded.logits(decode([0, 3], [19, 89]), [first[-1], last[-1]])
    np.testing.assert_array_equal(loaded.logits(decode([1], [50]), [3]), again)
    np.testing.assert_allclose(together[0], alone(loaded, 2, first), atol=CLOSE)
    np.testing.assert_allclose(together[1], alone(loaded, 2, last), atol=CLOSE)
    np.testing.assert_array_equal(alone(loaded, 1, idle), expected)


def test_a_slot_starts_over_without_traces(loaded: Shards) -> None:
    fresh = alone(loaded, 2, tokens(30, 40))
    alone(loaded, 2, tokens(31, 200))
    np.testing.assert_array_equal(alone(loaded, 2, tokens(30, 40)), fresh)


def test_the_context_can_be_filled_to_its_last_row(loaded: Shards) -> None:
    sequence = tokens(40, CONTEXT)
    whole = alone(loaded, 3, sequence)
    alone(loaded, 0, sequence[:-1])
    np.testing.assert_allclose(
        loaded.logits(decode([0], [CONTEXT - 1]), [sequence[-1]])[0], whole, atol=CLOSE
    )


def test_no_step_needs_more_memory_than_was_reserved(loaded: Shards) -> None:
    """Every kind of shape, more of them than are kept: `Workspace.place` raises when it would grow."""
    sequence = tokens(50, CONTEXT)
    expected = alone(loaded, 0, sequence[:100])
    for rows in range(1, 65):
        loaded.prompt(1, sequence, step=rows) if rows % 16 == 0 else loaded.logits(
            chunk(2, CONTEXT - rows, rows), sequence[:rows]
        )
    for active in ([0], [1, 3], [0, 1, 3], [0, 2, 3], [0, 3], [0, 1, 2, 3]):
        for position in (5, 299):
            loaded.logits(decode(active, [position] * len(active)), [1] * len(active))
    np.testing.assert_array_equal(alone(loaded, 0, sequence[:100]), expected)
    assert len(loaded.lead._layers._steps) <= layers.KEPT_STEPS


def test_a_shapes_graphs_are_built_once(loaded: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[StepShape] = []
    build = layers.Layers._build

    def counted(self: layers.Layers, shape: StepShape) -> layers._Step:
        if self is loaded.lead._layers:
            built.append(shape)
        return build(self, shape)

    monkeypatch.setattr(layers.Layers, "_build", counted)
    for _ in range(2):
        for position in range(20):
            loaded.logits(decode([0, 1], [position] * 2), [5, 6])
        loaded.logits(chunk(2, 0, 7), tokens(1, 7))
    assert [shape.rows for shape in built] == [2, 7]


def test_a_shard_without_host_memory_computes_the_same(
    file: GgufFile, loaded: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs and results are copied to and from a device; the CPU backend stands in for one."""
    monkeypatch.setattr("antfarm.engine.ggml._is_host", lambda kind: False)
    ranks = len(loaded.engines)
    plan = shards.parts(file.facts, [ranks], heads=[2], ffn=[96])
    with shards.load(file, plan, OPTIONS) as copied:
        assert not copied.lead._layers.hidden._host
        sequence = tokens(60, 100)
        np.testing.assert_array_equal(alone(copied, 0, sequence), alone(loaded, 0, sequence))
        for each in (copied, loaded):
            alone(each, 3, sequence[:9])
        np.testing.assert_array_equal(
            copied.logits(decode([0, 3], [100, 9]), [5, 6]), loaded.logits(decode([0, 3], [100, 9]), [5, 6])
        )


def rows(slots: list[int], positions: list[int]) -> Batch:
    return Batch(np.array(slots, np.int32), np.array(positions, np.int32), np.array([0], np.int32))


@pytest.mark.parametrize(
    "batch",
    [
        rows([], []),
        rows([0], [CONTEXT]),
        rows([0], [-1]),
        rows([SLOTS], [0]),
        rows([-1], [0]),
        rows([2, 1], [0, 0]),
        rows([0, 0, 0], [4, 6, 7]),
        rows([0, 1, 0], [4, 5, 6]),
        rows([0] * 65, list(range(65))),
        rows([0, 1], [3]),
    ],
)
def test_a_step_that_ggml_would_not_survive_is_refused(file: GgufFile, batch: Batch) -> None:
    with shards.load(file, shards.parts(file.facts, [1]), OPTIONS) as loaded:
        hidden = np.zeros((len(batch.slots), file.facts.embedding), np.float32)
        with pytest.raises(AntfarmError) as raised:
            loaded.lead.forward(batch, hidden)
        assert raised.value.reason == Reason.INTERNAL


def test_tokens_and_rows_that_do_not_fit_are_refused(file: GgufFile) -> None:
    with shards.load(file, shards.parts(file.facts, [1, 1]), OPTIONS) as loaded:
        lead, other = loaded.engines
        width = file.facts.embedding
        for call in (
            lambda: lead.embed(np.array([file.facts.vocabulary], np.int32)),
            lambda: lead.embed(np.array([-1], np.int32)),
            lambda: lead.embed(np.zeros(0, np.int32)),
            lambda: lead.logits(np.zeros((SLOTS + 1, width), np.float32)),
            lambda: lead.logits(np.zeros((1, width + 1), np.float32)),
            lambda: lead.forward(chunk(0, 0, 2), np.zeros((1, width), np.float32)),
            lambda: lead.forward(chunk(0, 0, 2), np.zeros((2, width), np.float32), lambda part, total: None),
            lambda: other.embed(np.zeros(1, np.int32)),
        ):
            with pytest.raises(AntfarmError) as raised:
                call()
            assert raised.value.reason == Reason.INTERNAL
