"""Every error that ANTFARM raises on purpose.

    AntfarmError            .reason (stable), .message, .hint (what to do next), .numbers
     ├ ModelError           the model file, its name, or its download
     ├ PlanError            a split or a placement that can't be
     ├ LinkError            a shard's connection to a peer; carries .peer
     ├ BusError             NATS: unreachable, unauthorized, full
     ├ RequestError         the caller's request is wrong
     └ StateError           the colony is not in a state to do that now

A reason is a contract: clients match on it, so it never changes its spelling.
Across the bus an error travels as `messages.Failure` and comes out as a plain `AntfarmError`.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The stable strings that clients, scripts and the ops log match on."""

    # the model
    NOT_A_GGUF = "not-a-gguf"
    UNSUPPORTED_FILE = "unsupported-file"
    MODEL_TRUNCATED = "model-truncated"
    MODEL_UNKNOWN = "model-unknown"
    MODEL_MISMATCH = "model-mismatch"
    UNSUPPORTED_ARCHITECTURE = "unsupported-architecture"
    UNSUPPORTED_TENSOR_TYPE = "unsupported-tensor-type"
    UNSUPPORTED_TOKENIZER = "unsupported-tokenizer"
    BAD_CHAT_TEMPLATE = "bad-chat-template"
    DOWNLOAD_FAILED = "download-failed"
    CHECKSUM_MISMATCH = "checksum-mismatch"
    # the plan
    SPLIT_IMPOSSIBLE = "split-impossible"
    NO_CAPACITY = "no-capacity"
    # the links
    LINK_REFUSED = "link-refused"
    LINK_LOST = "link-lost"
    LINK_TIMEOUT = "link-timeout"
    LINK_GARBAGE = "link-garbage"
    # the bus
    BUS_UNREACHABLE = "bus-unreachable"
    BUS_UNAUTHORIZED = "bus-unauthorized"
    BUS_FULL = "bus-full"
    # the request
    INVALID_REQUEST = "invalid-request"
    CONTEXT_OVERFLOW = "context-overflow"
    PATH_UNKNOWN = "path-unknown"
    UNAUTHORIZED = "unauthorized"
    QUEUE_FULL = "queue-full"
    CANCELLED = "cancelled"
    # the state
    SHARD_MISSING = "shard-missing"
    SHARD_FAILED = "shard-failed"
    FORAGER_LOST = "forager-lost"
    MODEL_LOADING = "model-loading"
    MODEL_RETIRED = "model-retired"
    MODEL_LOADED = "model-loaded"
    COLONY_DOWN = "colony-down"
    COLONY_EXISTS = "colony-exists"
    PORT_IN_USE = "port-in-use"
    TIMEOUT = "timeout"
    BAD_SETTING = "bad-setting"
    ENGINE_UNAVAILABLE = "engine-unavailable"
    INTERNAL = "internal"


def cut(text: str, most: int = 80) -> str:
    """A text from outside, short enough to be told in a message."""
    return text if len(text) <= most else f"{text[:most]}..."


class AntfarmError(Exception):
    """An expected failure: a stable reason, one clear sentence, and what to do next."""

    def __init__(self, reason: Reason, message: str, *, hint: str = "", **numbers: int | float | str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.hint = hint
        self.numbers = numbers

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class ModelError(AntfarmError):
    """The model file, its name, or its download."""


class PlanError(AntfarmError):
    """A split or a placement that can't be."""


class LinkError(AntfarmError):
    """A shard's connection to a peer broke, stalled or spoke garbage."""

    def __init__(self, reason: Reason, message: str, *, peer: str, hint: str = "") -> None:
        super().__init__(reason, message, hint=hint, peer=peer)
        self.peer = peer


class BusError(AntfarmError):
    """NATS is unreachable, refuses us, or is full."""


class RequestError(AntfarmError):
    """The caller's request is wrong; trying again unchanged will not help."""


class StateError(AntfarmError):
    """The colony is not in a state to do that now."""
