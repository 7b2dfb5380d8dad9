"""All the colony's subjects, in one table. The version in the prefix is the version of the messages."""

from __future__ import annotations

from antfarm.bus.subject import RequestSubject, Subject
from antfarm.errors import Reason
from antfarm.messages import (
    ColonyStats,
    DescribeModel,
    Done,
    ListModels,
    ListStats,
    LoadModel,
    ModelDescribed,
    ModelList,
    ModelStatus,
    OpsEvent,
    PullProgress,
    ShardEvent,
    ShardLink,
    ShardListening,
    ShardLoad,
    ShardStop,
    TaskAssign,
    TaskCancel,
    TaskEvent,
    UnloadModel,
)

PREFIX = "antfarm.v1"

# operator -> queen
QUEEN_LOAD: RequestSubject[LoadModel, ModelStatus] = RequestSubject(
    f"{PREFIX}.queen.load", LoadModel, ModelStatus, absent=Reason.COLONY_DOWN
)
QUEEN_UNLOAD: RequestSubject[UnloadModel, Done] = RequestSubject(
    f"{PREFIX}.queen.unload", UnloadModel, Done, absent=Reason.COLONY_DOWN
)
QUEEN_MODELS: RequestSubject[ListModels, ModelList] = RequestSubject(
    f"{PREFIX}.queen.models", ListModels, ModelList, absent=Reason.COLONY_DOWN
)

QUEEN_STATS: RequestSubject[ListStats, ColonyStats] = RequestSubject(
    f"{PREFIX}.queen.stats", ListStats, ColonyStats, absent=Reason.COLONY_DOWN
)

# queen -> forager
FORAGER_DESCRIBE: RequestSubject[DescribeModel, ModelDescribed] = RequestSubject(
    f"{PREFIX}.forager.{{forager}}.describe", DescribeModel, ModelDescribed, absent=Reason.FORAGER_LOST
)
FORAGER_LOAD: RequestSubject[ShardLoad, ShardListening] = RequestSubject(
    f"{PREFIX}.forager.{{forager}}.load", ShardLoad, ShardListening, absent=Reason.FORAGER_LOST
)
FORAGER_LINK: RequestSubject[ShardLink, Done] = RequestSubject(
    f"{PREFIX}.forager.{{forager}}.link", ShardLink, Done, absent=Reason.FORAGER_LOST
)
FORAGER_STOP: RequestSubject[ShardStop, Done] = RequestSubject(
    f"{PREFIX}.forager.{{forager}}.stop", ShardStop, Done, absent=Reason.FORAGER_LOST
)
FORAGER_ASSIGN: RequestSubject[TaskAssign, Done] = RequestSubject(
    f"{PREFIX}.forager.{{forager}}.assign", TaskAssign, Done, absent=Reason.FORAGER_LOST
)
FORAGER_CANCEL: RequestSubject[TaskCancel, Done] = RequestSubject(
    f"{PREFIX}.forager.{{forager}}.cancel", TaskCancel, Done, absent=Reason.FORAGER_LOST
)

# forager -> queen, and whoever else watches
SHARD_EVENTS: Subject[ShardEvent] = Subject(f"{PREFIX}.shard.{{forager}}", ShardEvent)
PULL_EVENTS: Subject[PullProgress] = Subject(f"{PREFIX}.pull.{{forager}}", PullProgress)
TASK_EVENTS: Subject[TaskEvent] = Subject(f"{PREFIX}.task.{{task}}", TaskEvent)

# into the ops log, one subject a kind so that the server counts them
OPS: Subject[OpsEvent] = Subject(f"{PREFIX}.ops.{{kind}}", OpsEvent)
