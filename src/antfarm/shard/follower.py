"""Every shard but the lead: hidden rows in, hidden rows out, and never a token."""

from __future__ import annotations

from antfarm.engine import Engine
from antfarm.link.mesh import Mesh
from antfarm.shard.pipeline import Reduce


def follow(engine: Engine, mesh: Mesh, reduce: Reduce | None) -> None:
    """Take part in steps until a peer is gone (`LinkError`) or the mesh was stopped."""
    while step := mesh.receive_step():
        mesh.pass_on(step, engine.forward(step.batch, step.rows, reduce))
