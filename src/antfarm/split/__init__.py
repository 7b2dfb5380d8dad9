"""Split plans: who holds what of a model, in how much memory. Pure."""

from antfarm.split.memory import Footprint, resolved_context
from antfarm.split.placing import fewest, place, plan
from antfarm.split.request import HostShare, Mode, Placement, SplitRequest
from antfarm.split.text import part_text

__all__ = [
    "Footprint", "HostShare", "Mode", "Placement", "SplitRequest",
    "fewest", "part_text", "place", "plan", "resolved_context",
]  # fmt: skip
