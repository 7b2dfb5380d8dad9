"""Real meshes over loopback: one thread for each shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import numpy as np

from antfarm.batch import Batch
from antfarm.link import Listener, Mesh, MeshSpec
from antfarm.messages import Peer
from antfarm.secret import Secret
from antfarm.types import Part, Plan, RunOptions, Span, SplitMode

SECRET = Secret("a secret of the tests")
STEP_S = 20.0


def plan_of(*ranks: int) -> Plan:
    """A plan with so many ranks in each stage; what it holds does not matter to links."""
    parts: list[Part] = []
    for stage, count in enumerate(ranks):
        for rank in range(count):
            halves = Span(2 * stage, 2 * stage + 2)
            parts.append(Part(len(parts), stage, rank, count, halves, Span(0, 1), Span(0, 32)))
    return Plan(SplitMode.HYBRID, tuple(parts), ())


def spec_of(plan: Plan, shard: int, **changes: Any) -> MeshSpec:
    options = RunOptions(chunk=128, slots=8)
    spec = MeshSpec("r1", 3, "fingerprint", plan, shard, options, width=64, secret=SECRET, step_s=STEP_S)
    return replace(spec, **changes)


def batch_of(rows: int, outputs: Sequence[int] = ()) -> Batch:
    index = np.arange(rows, dtype=np.int32)
    return Batch(np.zeros(rows, np.int32), index, np.array(outputs, np.int32))


def listeners(count: int) -> tuple[list[Listener], list[Peer]]:
    bound = [Listener.bind("127.0.0.1") for _ in range(count)]
    return bound, [Peer(i, f"shard {i}", "127.0.0.1", each.port) for i, each in enumerate(bound)]


def run(specs: Sequence[MeshSpec], body: Callable[[int, Mesh], Any], *, link_s: float = 30.0) -> list[Any]:
    """What `body(shard, mesh)` returns on each shard, or the exception that it or the linking raised.

    Meshes stay open until all bodies are through; one whose body raises closes, as its process would.
    """
    bound, peers = listeners(len(specs))
    done = Barrier(len(specs), timeout=60)

    def shard(i: int) -> Any:
        try:
            with Mesh.connect(bound[i], specs[i], peers, link_s) as mesh:
                out = body(i, mesh)
                done.wait()
                return out
        except Exception as error:  # noqa: BLE001 - handed to the test
            done.abort()
            return error

    with ThreadPoolExecutor(len(specs)) as pool:
        return list(pool.map(shard, range(len(specs))))
