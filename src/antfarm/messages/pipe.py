"""Between a forager and its shard process: stdin and stdout, one JSON object a line."""

from __future__ import annotations

from antfarm.messages.base import Message
from antfarm.messages.shards import ShardEvent, ShardLink, ShardListening, ShardLoad, ShardStop
from antfarm.messages.tasks import TaskAssign, TaskCancel, TaskEvent


class ShardSpec(Message, frozen=True, tag="shard-spec"):
    """The first line a shard reads. The secret comes this way so that no process list shows it."""

    load: ShardLoad
    path: str  # the model file on this host
    name: str  # this shard's own name in peers' errors
    address: str  # to listen on
    secret: str
    threads: int


ShardCommand = ShardSpec | ShardLink | TaskAssign | TaskCancel | ShardStop
ShardOutput = ShardListening | ShardEvent | TaskEvent
