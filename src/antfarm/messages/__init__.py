"""Every message of the colony: on the bus, and between a forager and its shard processes.

Tagged, strict, versioned by the subject prefix. JSON on the bus so that `nats sub '>'` is readable;
the same structs travel as JSON lines over a shard's stdin and stdout. No message carries activations.
"""

from antfarm.messages.base import Done, Failure, Message
from antfarm.messages.foragers import DescribeModel, ForagerFacts, ModelDescribed, PullProgress, ShardStatus
from antfarm.messages.operators import (
    ListModels,
    LoadModel,
    ModelList,
    ModelStatus,
    OpsEvent,
    ShardView,
    UnloadModel,
)
from antfarm.messages.pipe import ShardCommand, ShardOutput, ShardSpec
from antfarm.messages.shards import (
    Peer,
    ReplicaProved,
    ShardEvent,
    ShardFailed,
    ShardLink,
    ShardLinked,
    ShardListening,
    ShardLoad,
    ShardLoaded,
    ShardProgress,
    ShardStop,
)
from antfarm.messages.stats import ColonyStats, Histogram, LeadStats, ListStats, ModelStats, ShardStats
from antfarm.messages.tasks import (
    ChatMessage,
    TaskAccepted,
    TaskAssign,
    TaskCancel,
    TaskEvent,
    TaskFinished,
    TaskOutput,
    TaskTokens,
    Timings,
    TokenLogprob,
    Tool,
    ToolCall,
    Wanted,
)

__all__ = [
    "ChatMessage",
    "ColonyStats",
    "DescribeModel",
    "Done",
    "Failure",
    "ForagerFacts",
    "Histogram",
    "LeadStats",
    "ListModels",
    "ListStats",
    "LoadModel",
    "Message",
    "ModelDescribed",
    "ModelList",
    "ModelStats",
    "ModelStatus",
    "OpsEvent",
    "Peer",
    "PullProgress",
    "ReplicaProved",
    "ShardCommand",
    "ShardEvent",
    "ShardFailed",
    "ShardLink",
    "ShardLinked",
    "ShardListening",
    "ShardLoad",
    "ShardLoaded",
    "ShardOutput",
    "ShardProgress",
    "ShardSpec",
    "ShardStats",
    "ShardStatus",
    "ShardStop",
    "ShardView",
    "TaskAccepted",
    "TaskAssign",
    "TaskCancel",
    "TaskEvent",
    "TaskFinished",
    "TaskOutput",
    "TaskTokens",
    "Timings",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "UnloadModel",
    "Wanted",
]
