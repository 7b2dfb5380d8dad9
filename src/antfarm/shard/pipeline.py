"""Steps through all shards, seen from the lead."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antfarm.batch import Batch
from antfarm.engine import Engine
from antfarm.link.mesh import Mesh
from antfarm.shard.meter import Meter

Rows = NDArray[np.float32]

_NO_LOGITS: Rows = np.empty((0, 0), np.float32)


class Traffic(NamedTuple):
    """What the lead's links have carried since they stand."""

    bytes: int  # sent and received
    waited: float  # seconds that the lead waited for peers


class Pipeline:
    """Steps go in with `submit` and come out of `collect` in the same order; several may be under way."""

    def __init__(self, engine: Engine, mesh: Mesh, meter: Meter) -> None:
        self._engine = engine
        self._mesh = mesh
        self._meter = meter

    def submit(self, batch: Batch, tokens: NDArray[np.int32]) -> None:
        """Send a step off, after the lead's own share of it. Raises `LinkError`."""
        rows = self._engine.embed(tokens)
        step = self._mesh.start_step(batch, rows)
        self._mesh.pass_on(step, self._meter.forward(batch, rows))

    def collect(self) -> Rows:
        """Logits [outputs, V] of the oldest step under way, valid until the next call. Raises `LinkError`."""
        rows = self._mesh.receive_result().rows
        return self._meter.logits(rows) if len(rows) else _NO_LOGITS

    def collect_hidden(self) -> Rows:
        """As `collect`, but what the logits are made of: rows [outputs, E] after the output norm."""
        return self._engine.normalized(self._mesh.receive_result().rows)

    def traffic(self) -> Traffic:
        mesh = self._mesh
        return Traffic(mesh.bytes_sent + mesh.bytes_received, mesh.seconds_waited)

    def check(self) -> None:
        """Raise `LinkError` when a peer is known to be gone; never waits."""
        self._mesh.check()
