"""What operators ask of the queen, and what they see: models, and the ops log."""

from __future__ import annotations

import msgspec

from antfarm.messages.base import Failure, Message
from antfarm.types import RunOptions


class LoadModel(Message, frozen=True, tag="load-model"):
    """Load a model, or with `reshard` change a loaded one's split. Reply: `ModelStatus`, loading."""

    model: str
    name: str = ""  # to serve it under; empty takes the catalog's or the file's
    split: int = 0  # shards; 0 lets the queen choose the fewest that fit
    mode: str = "auto"  # auto | tensor | pipeline | hybrid
    stages: int = 0  # of a hybrid
    shares: tuple[float, ...] = ()  # relative weights of the shards; empty takes the foragers' own
    options: RunOptions = RunOptions()
    reshard: bool = False
    replicas: int = 1  # on foragers of their own; a reshard keeps their number


class UnloadModel(Message, frozen=True, tag="unload-model"):
    model: str


class ListModels(Message, frozen=True, tag="list-models"):
    """Reply: `ModelList`."""


class ShardView(msgspec.Struct, frozen=True):
    """One shard as `antc ps` shows it."""

    shard: int
    forager: str
    part: str  # "layers 0-14, KV heads 0-1, ffn 0-767"
    state: str
    loaded: float  # 0..1
    planned: int
    resident: int


class ModelStatus(Message, frozen=True, tag="model-status"):
    """A model as the queen sees it. `state`: loading | ready | unavailable | failed | retired."""

    model: str
    source: str
    state: str
    mode: str
    replica: str
    epoch: int
    context: int
    slots: int
    shards: tuple[ShardView, ...]
    failure: Failure | None = None
    seconds: float = 0.0  # from request to ready
    created: float = 0.0  # seconds since the epoch
    trained: int = 0  # the context that the model was made for, once known
    room: int = 0  # tasks that all its replicas together run and queue, once known


class ModelList(Message, frozen=True, tag="model-list"):
    models: tuple[ModelStatus, ...]


class OpsEvent(Message, frozen=True, tag="ops"):
    """One durable line of the ops log."""

    time: float  # seconds since the epoch
    kind: str  # "forager-joined", "forager-lost", "model-ready", "shard-missing", ...
    subject: str  # the forager or model it is about
    text: str
    reason: str = ""
