"""A subject binds a name, a message type and its codec in one object, so that the three can't drift apart."""

from __future__ import annotations

import copy
import re
from typing import Any, Generic, Self, TypeVar

import msgspec

from antfarm.errors import Reason, RequestError
from antfarm.messages import Failure

M = TypeVar("M")
R = TypeVar("R")

_PLACEHOLDER = re.compile(r"\{\w+\}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Subject(Generic[M]):
    """A name on the bus and the one type (or union) of messages that travel there.

    A template such as `shard.{forager}` is filled in with `of`; left open it matches every value,
    which is what a subscriber to all foragers wants.
    """

    def __init__(self, template: str, message: Any) -> None:
        self._template = template
        self._decoder = msgspec.json.Decoder(message)

    def of(self, token: str) -> Self:
        """This subject with its first open placeholder filled in."""
        if not _TOKEN.fullmatch(token):
            raise RequestError(
                Reason.INVALID_REQUEST,
                f"{token!r} can't be part of a bus subject",
                hint="use letters, digits, '-' and '_'",
            )
        filled = copy.copy(self)
        filled._template = _PLACEHOLDER.sub(token, self._template, count=1)
        return filled

    @property
    def name(self) -> str:
        """Where to publish; only a subject without open placeholders has one."""
        if _PLACEHOLDER.search(self._template):
            raise ValueError(f"the subject {self._template} has an open placeholder")
        return self._template

    @property
    def pattern(self) -> str:
        """Where to subscribe: open placeholders match anything."""
        return _PLACEHOLDER.sub("*", self._template)

    def encode(self, message: M) -> bytes:
        """The message as strict JSON."""
        return msgspec.json.encode(message)

    def decode(self, data: bytes) -> M:
        """The message in `data`. Raises RequestError `invalid-request` when it isn't this subject's."""
        message: M = _decoded(self._decoder, data, self._template)
        return message

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._template}>"


class RequestSubject(Subject[M], Generic[M, R]):
    """A subject whose messages are answered: by `R`, or by a `Failure` that is raised at the asker.

    `absent` is the reason raised when nobody serves the subject.
    """

    def __init__(self, template: str, message: Any, reply: Any, *, absent: Reason) -> None:
        super().__init__(template, message)
        self._reply_decoder = msgspec.json.Decoder(reply | Failure)
        self.absent = absent

    @property
    def asked(self) -> str:
        """Whom a request goes to, in words: a forager by its id."""
        return self.name.split(".")[-2] if self.absent is Reason.FORAGER_LOST else "the queen"

    def encode_reply(self, reply: R | Failure) -> bytes:
        return msgspec.json.encode(reply)

    def decode_reply(self, data: bytes) -> R:
        """The reply in `data`; a `Failure` is raised as the AntfarmError it stands for."""
        reply = _decoded(self._reply_decoder, data, self._template)
        if isinstance(reply, Failure):
            raise reply.error()
        answer: R = reply
        return answer


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes, subject: str) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(
            Reason.INVALID_REQUEST,
            f"a malformed message on {subject}: {error}",
            hint="do both sides run the same version of antfarm?",
        ) from error
