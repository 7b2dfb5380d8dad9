"""Every shard but the lead: hidden rows in, hidden rows out, and never a token."""

from __future__ import annotations

from antfarm.link.mesh import Mesh
from antfarm.shard.meter import Meter


def follow(meter: Meter, mesh: Mesh) -> None:
    """Take part in steps until a peer is gone (`LinkError`) or the mesh was stopped."""
    while step := mesh.receive_step():
        mesh.pass_on(step, meter.forward(step.batch, step.rows))
