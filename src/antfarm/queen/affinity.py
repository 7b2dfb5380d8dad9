"""Which replica may still hold the beginning of a conversation, so that its next turn need not read it again.
Pure: a bounded memory of where beginnings went."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from antfarm.colony.state import Key
from antfarm.messages import ChatMessage
from antfarm.queen.tasks import TaskRequest

KEPT = 512  # beginnings that are remembered: slots hold fewer
CHARS = 256  # a prompt this long is worth going back for; that much of a text is its beginning
TOKENS = 64  # the same in tokens


class Affinity:
    """Replicas by the beginnings of the prompts that they had last."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._replicas: OrderedDict[int, Key] = OrderedDict()

    def recall(self, request: TaskRequest) -> Key | None:
        """The replica that had a prompt with this beginning; None when none had, or it is short."""
        beginning = _beginning(request)
        return None if beginning is None else self._replicas.get(beginning)

    def remember(self, request: TaskRequest, replica: Key) -> None:
        """The request goes there."""
        beginning = _beginning(request)
        if beginning is None:
            return
        self._replicas[beginning] = replica
        self._replicas.move_to_end(beginning)
        if len(self._replicas) > self._kept:
            self._replicas.popitem(last=False)


def _beginning(request: TaskRequest) -> int | None:
    """A hash of what all turns of a conversation share: its messages up to the first of the user, or the
    first of a text. None for what leaves no rows behind that could be used again, or only a few."""
    if request.wanted.kind != "answer":
        return None
    if request.messages is not None:
        worth = sum(len(message.content) for message in request.messages) >= CHARS
        return hash((request.model, *_opening(request.messages))) if worth else None
    if request.text is not None:
        return hash((request.model, request.text[:CHARS])) if len(request.text) >= CHARS else None
    tokens = request.tokens or ()
    return hash((request.model, tokens[:TOKENS])) if len(tokens) >= TOKENS else None


def _opening(messages: Iterable[ChatMessage]) -> Iterable[tuple[str, str]]:
    for message in messages:
        yield message.role, message.content
        if message.role == "user":
            return
