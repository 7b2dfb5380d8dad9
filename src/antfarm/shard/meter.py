"""What one shard has done so far, counted where it happens, told once a second."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Batch
from antfarm.engine import Engine
from antfarm.link.mesh import Mesh
from antfarm.messages import LeadStats, ShardStats

Rows = NDArray[np.float32]

TELL_S = 1.0  # between two ShardStats


class Meter:
    """Counts the work of a shard's engine and links."""

    def __init__(self, engine: Engine, mesh: Mesh, *, ranks: int) -> None:
        self._engine = engine
        self._mesh = mesh
        self._reduce = mesh.all_reduce if ranks > 1 else None
        self._computed = 0.0
        self._steps = self._prompt_rows = self._decode_rows = 0

    def forward(self, batch: Batch, rows: Rows) -> Rows:
        """`Engine.forward`, with the sums exchanged between the ranks of a stage."""
        began = time.perf_counter() - self._mesh.seconds_waited
        out = self._engine.forward(batch, rows, self._reduce)
        self._computed += time.perf_counter() - self._mesh.seconds_waited - began
        self._steps += 1
        if batch.is_chunk:
            self._prompt_rows += batch.rows
        else:  # or a chunk of a single row, which looks the same from here
            self._decode_rows += batch.rows
        return out

    def logits(self, rows: Rows) -> Rows:
        """`Engine.logits`."""
        began = time.perf_counter()
        out = self._engine.logits(rows)
        self._computed += time.perf_counter() - began
        return out

    def stats(self, replica: str, epoch: int, shard: int, lead: LeadStats | None) -> ShardStats:
        return ShardStats(
            replica,
            epoch,
            shard,
            computed=self._computed,
            waited=self._mesh.seconds_waited,
            bytes_sent=self._mesh.bytes_sent,
            bytes_received=self._mesh.bytes_received,
            steps=self._steps,
            prompt_rows=self._prompt_rows,
            decode_rows=self._decode_rows,
            lead=lead,
        )


@contextlib.contextmanager
def telling(stats: Callable[[], ShardStats], emit: Callable[[ShardStats], None]) -> Iterator[None]:
    """While the block runs, emit what has changed, once a second, from a thread of its own."""
    ended = threading.Event()

    def tell() -> None:
        last = stats()
        while not ended.wait(TELL_S):
            now = stats()
            if now != last:
                last = now
                emit(now)

    thread = threading.Thread(target=tell, name="stats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
