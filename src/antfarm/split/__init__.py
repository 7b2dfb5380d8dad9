"""Split plans: who holds what of a model, in how much memory. Pure."""

from antfarm.split.memory import Footprint
from antfarm.split.placing import fewest, place, plan
from antfarm.split.request import MODES, HostShare, Placement, SplitRequest
from antfarm.split.text import part_text

__all__ = [
    "MODES", "Footprint", "HostShare", "Placement", "SplitRequest",
    "fewest", "part_text", "place", "plan",
]  # fmt: skip
