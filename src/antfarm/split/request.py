"""What the planner is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from antfarm.types import Plan, RunOptions

MODES = ("auto", "tensor", "pipeline", "hybrid")


@dataclass(frozen=True)
class SplitRequest:
    """How a model shall be split.

    `auto` is a tensor split where the model's heads allow that many ranks and it fits, else a pipeline; with
    `stages` set it is a hybrid. `shards` 0 asks for the fewest that fit.
    """

    shards: int = 0
    mode: str = "auto"  # of MODES
    stages: int = 0  # of a hybrid; 0 takes as few as the heads allow
    shares: tuple[float, ...] = ()  # the shards' relative weights; empty takes the hosts' own

    @property
    def least(self) -> int:
        """How many shards it takes, at least."""
        return self.shards or max(1, len(self.shares), self.stages)


@dataclass(frozen=True)
class HostShare:
    """A host that may take one shard."""

    name: str
    memory: int  # bytes free for it
    weight: float = 1.0  # speed, relative to the other hosts
    shards: int = 0  # that it runs already


@dataclass(frozen=True)
class Placement:
    """A plan that fits: shard i goes to `hosts[i]`. Context and slots in `options` are decided, never 0."""

    hosts: tuple[str, ...]
    plan: Plan
    options: RunOptions
