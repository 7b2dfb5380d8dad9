"""A model's shards in one process, one thread each, with the exchange done in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Batch
from antfarm.engine import Engine
from antfarm.model.gguf import GgufFile
from antfarm.types import ModelFacts, Part, RunOptions, Span

_STEP_S = 60.0


def parts(
    facts: ModelFacts, stages: Sequence[int], *, heads: Sequence[int] = (), ffn: Sequence[int] = ()
) -> list[Part]:
    """`stages` are the ranks of each stage; half layers are shared evenly. `heads` and `ffn` are the inner
    cuts between the ranks, for every stage."""
    out: list[Part] = []
    for stage, ranks in enumerate(stages):
        cut = [2 * facts.layers * edge // len(stages) for edge in (stage, stage + 1)]
        kv_cuts = [0, *heads, facts.kv_heads] if ranks > 1 else [0, facts.kv_heads]
        ffn_cuts = [0, *ffn, facts.feed_forward] if ranks > 1 else [0, facts.feed_forward]
        assert len(kv_cuts) == len(ffn_cuts) == ranks + 1
        for rank in range(ranks):
            kv, width = Span(*kv_cuts[rank : rank + 2]), Span(*ffn_cuts[rank : rank + 2])
            out.append(Part(len(out), stage, rank, ranks, Span(*cut), kv, width))
    return out


def chunk(slot: int, start: int, rows: int) -> Batch:
    index = np.arange(rows, dtype=np.int32)
    return Batch(np.full(rows, slot, np.int32), start + index, np.array([rows - 1], np.int32))


def decode(slots: Sequence[int], positions: Sequence[int]) -> Batch:
    index = np.arange(len(slots), dtype=np.int32)
    return Batch(np.array(slots, np.int32), np.array(positions, np.int32), index)


class Shards:
    """All shards of one model; the first is the lead."""

    def __init__(self, engines: list[Engine], stages: list[list[int]]) -> None:
        self.engines = engines
        self.lead = engines[0]
        self._stages = stages
        self._pool = ThreadPoolExecutor(len(engines))

    def forward(self, batch: Batch, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """Final hidden rows of a step."""
        rows = self.lead.embed(tokens).copy()
        for stage in self._stages:
            rows = self._run_stage(stage, batch, rows)
        return rows

    def logits(self, batch: Batch, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[outputs, vocabulary]."""
        rows = self.forward(batch, np.array(tokens, np.int32))
        return self.lead.logits(rows[batch.outputs]).copy()

    def prompt(self, slot: int, tokens: Sequence[int], *, step: int = 128) -> NDArray[np.float32]:
        """Logits [vocabulary] after a prompt, in chunks of `step`."""
        out = np.empty(0, np.float32)
        for at in range(0, len(tokens), step):
            piece = tokens[at : at + step]
            out = self.logits(chunk(slot, at, len(piece)), piece)[-1]
        return out

    def _run_stage(self, stage: list[int], batch: Batch, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        if len(stage) == 1:
            return self.engines[stage[0]].forward(batch, rows).copy()
        reduce = _all_reduce(len(stage), rows.shape)
        running = [
            self._pool.submit(
                lambda shard=shard, rank=rank: self.engines[shard].forward(batch, rows, reduce(rank)).copy()
            )
            for rank, shard in enumerate(stage)
        ]
        results = [each.result(_STEP_S) for each in running]
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])
        return results[0]

    def close(self) -> None:
        self._pool.shutdown()
        for engine in self.engines:
            engine.close()


def _all_reduce(
    ranks: int, shape: tuple[int, ...]
) -> Callable[[int], Callable[[NDArray[np.float32], NDArray[np.float32]], None]]:
    """Sums in rank order, so that all ranks get the same bits."""
    barrier = Barrier(ranks, timeout=_STEP_S)
    given = np.empty((ranks, *shape), np.float32)

    def of(rank: int) -> Callable[[NDArray[np.float32], NDArray[np.float32]], None]:
        def reduce(partial: NDArray[np.float32], total: NDArray[np.float32]) -> None:
            given[rank] = partial
            barrier.wait()
            np.copyto(total, given[0])
            for other in given[1:]:
                total += other
            barrier.wait()

        return reduce

    return of


@contextmanager
def load(
    file: GgufFile, plan: Sequence[Part], options: RunOptions | None = None, *, threads: int = 1
) -> Iterator[Shards]:
    options = options or RunOptions(context=512)
    engines = [Engine.load(file, part, options, threads=threads) for part in plan]
    stages: list[list[int]] = []
    for part in plan:
        if part.stage == len(stages):
            stages.append([])
        stages[part.stage].append(part.shard)
    shards = Shards(engines, stages)
    try:
        yield shards
    finally:
        shards.close()
