"""A forager in the registry, and what it says of a model: queen and forager."""

from __future__ import annotations

from typing import Literal

import msgspec

from antfarm.messages.base import Message
from antfarm.types import ModelFacts


class ForagerFacts(Message, frozen=True, tag="forager"):
    """What a forager says of its host; the value kept in the Worker Node Registry."""

    id: str
    host: str
    address: str  # where this host's shards listen for infer.act
    cores: int
    threads: int  # that a shard here computes with
    memory: int  # bytes this forager may use for shards
    backends: tuple[str, ...]
    features: tuple[str, ...]  # of ggml's CPU backend: "AVX512", "LLAMAFILE", ...
    version: str
    pid: int
    started: float  # seconds since the epoch
    machine: str  # the same for all foragers whose memory is one
    memory_told: bool  # by --memory; else `memory` is most of what was free on the machine when it started
    shards: tuple[ShardStatus, ...] = ()


class ShardStatus(msgspec.Struct, frozen=True):
    """One shard process as its forager sees it."""

    replica: str
    epoch: int
    shard: int
    pid: int
    state: Literal["loading", "loaded", "linked", "failed"]
    resident: int  # bytes of resident memory now
    planned: int  # bytes planned


class DescribeModel(Message, frozen=True, tag="describe-model"):
    """Find (or fetch) a model on this host and read its header. Reply: `ModelDescribed`."""

    model: str  # a catalog name, a path, or a URL


class ModelDescribed(Message, frozen=True, tag="model-described"):
    facts: ModelFacts


class PullProgress(Message, frozen=True, tag="pull-progress"):
    """A forager fetches a model that it was asked to describe; an event, a few times a second."""

    forager: str
    model: str
    done: int  # bytes
    total: int  # 0 while it is not known
