"""Links between the shards of one model: frames, handshake, mesh. Blocking sockets, no threads of its own."""

from antfarm.link.listener import Listener
from antfarm.link.mesh import Mesh, MeshSpec, Result, Step

__all__ = ["Listener", "Mesh", "MeshSpec", "Result", "Step"]
