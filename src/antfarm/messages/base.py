"""What all messages are made of, and the answers that any request may get."""

from __future__ import annotations

import msgspec

from antfarm.errors import AntfarmError, Reason


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of all messages; subclasses set `tag`."""


class Failure(Message, frozen=True, tag="failure"):
    """An `AntfarmError` on its way to another process."""

    reason: str
    message: str
    hint: str = ""
    numbers: dict[str, int | float | str] = {}

    @classmethod
    def of(cls, error: AntfarmError) -> Failure:
        return cls(error.reason, error.message, error.hint, dict(error.numbers))

    def error(self) -> AntfarmError:
        """The error to raise here. A reason this version does not know becomes `internal`."""
        try:
            reason = Reason(self.reason)
        except ValueError:
            reason = Reason.INTERNAL
        error = AntfarmError(reason, self.message, hint=self.hint)
        error.numbers = dict(self.numbers)
        return error


class Done(Message, frozen=True, tag="done"):
    """The plain yes to a request."""
