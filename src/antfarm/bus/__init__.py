"""The phero bus: typed subjects over NATS, the embedded server, the registry and the ops log.

Control messages, task events and operator events travel here. Activations never do.
"""

from antfarm.bus.client import Bus, Subscription
from antfarm.bus.ops import OpsLog
from antfarm.bus.registry import Lease, Registry
from antfarm.bus.server import EmbeddedServer
from antfarm.bus.subject import RequestSubject, Subject

__all__ = [
    "Bus",
    "EmbeddedServer",
    "Lease",
    "OpsLog",
    "Registry",
    "RequestSubject",
    "Subject",
    "Subscription",
]
