"""Tool calls out of an answer's text as it grows. Pure; how the text is cut into pushes changes nothing
but the size of the pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass

from antfarm.model.toolform import CALL, CALL_END, ToolForm

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call begins: the `index`-th of the answer."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments, which are JSON text all together."""

    index: int
    text: str


Piece = Said | Called | Arguments


class ToolParser:
    """Reads one answer. What looks like a call and turns out to be none comes out as text.

    A call is told once its name is known and its arguments have begun. Space around calls is dropped.
    """

    def __init__(self, form: ToolForm, *, most: int | None = None, only: bool = False) -> None:
        """What comes after `most` calls is dropped. An answer that is made of calls `only` says nothing: what
        would come out as text is a call that was cut."""
        self.calls = 0  # told
        self._form = form
        self._most = most
        self._only = only
        self._text = ""  # not looked at yet, or held because a call may begin in it
        self._call: _Call | None = None
        self._prose = False  # text was said, after which Llama's form has no calls

    def push(self, text: str) -> list[Piece]:
        """What this text adds."""
        self._text += text
        pieces: list[Piece] = []
        while (step := self._step()) is not None:
            pieces += step
        return pieces

    def flush(self) -> list[Piece]:
        """What was held, once no more text comes."""
        call, left = self._call, self._text
        self._call, self._text = None, ""
        if call:
            left = "" if call.told else call.raw
        if self.calls and CALL_END.startswith(left.strip()):
            return []
        return self._say(left)

    def _step(self) -> list[Piece] | None:
        """Read on; None when what is left must wait for more."""
        if not self._text:
            return None
        if self._call:
            return self._read_call(self._call)
        if self.calls == self._most:
            self._text = ""
            return None
        return self._read_bare() if self._form is ToolForm.LLAMA else self._read_tagged()

    def _read_tagged(self) -> list[Piece] | None:
        """Hermes' form: up to a call's mark, all is text."""
        if self.calls and self._text.lstrip(_SPACE).startswith(CALL_END):
            self._text = self._text.lstrip(_SPACE).removeprefix(CALL_END)
        before, mark, after = self._text.partition(CALL)
        if mark:
            self._text, self._call = after, _Call(mark)
            return self._say(before.rstrip(_SPACE))
        release = len(self._text) - self._held()
        said, self._text = self._text[:release], self._text[release:]
        return self._say(said) or None

    def _read_bare(self) -> list[Piece] | None:
        """Llama's form: the answer is an object, or several with semicolons between, or it is text."""
        bare = self._text.lstrip(_SPACE + ";" if self.calls else _SPACE)
        if not bare:
            return None
        space, self._text = self._text[: -len(bare)], bare
        if bare.startswith("{") and not self._prose:
            self._call = _Call(space)
            return []
        self._text = ""
        return self._say(space + bare)

    def _read_call(self, call: _Call) -> list[Piece]:
        pieces: list[Piece] = []
        self._text = call.read(self._text)
        if call.begun and not call.told:
            call.told = True
            pieces.append(Called(self.calls, call.name))
            self.calls += 1
        if call.told and (fragment := call.take()):
            pieces.append(Arguments(self.calls - 1, fragment))
        if call.done:
            self._call = None
            if not call.told:
                pieces += self._say(call.raw)
        return pieces

    def _say(self, text: str) -> list[Piece]:
        self._prose = self._prose or bool(text.strip())
        return [Said(text)] if text and not self._only else []

    def _held(self) -> int:
        """How much of the text's end may belong to a mark: its beginning, and space before it."""
        marks = (CALL, CALL_END) if self.calls else (CALL,)
        begun = (n for mark in marks for n in range(1, len(mark)) if self._text.endswith(mark[:n]))
        mark = max(begun, default=0)
        before = self._text[: len(self._text) - mark]
        return mark + len(before) - len(before.rstrip(_SPACE))


class _NoCall(Exception):
    """The text is no object with a name and arguments."""


class _Call:
    """One call's JSON object, read character by character."""

    def __init__(self, before: str) -> None:
        self.raw = before  # all of it so far, with what stood before it
        self.name = ""
        self.told = self.done = False
        self._fragment = ""  # of the arguments, not taken yet
        self._reader = self._object()
        next(self._reader)

    @property
    def begun(self) -> bool:
        """Whether it is a call for sure."""
        return bool(self.name and self._fragment)

    def read(self, text: str) -> str:
        """Read on; returns what comes after the object, or after the place where it can be none."""
        for at, char in enumerate(text):
            self.raw += char
            try:
                self._reader.send(char)
            except (StopIteration, _NoCall):
                self.done = True
                return text[at + 1 :]
        return ""

    def take(self) -> str:
        """The arguments' text since the last time."""
        taken, self._fragment = self._fragment, ""
        return taken

    def _object(self) -> Generator[None, str, None]:
        char = yield from _next_token()
        _expect(char, "{")
        char = yield from _next_token()
        while char != "}":
            key = yield from _string(char)
            _expect((yield from _next_token()), ":")
            char = yield from _next_token()
            char = yield from self._member(key, char)
            if char == ",":
                char = yield from _next_token()
            else:
                _expect(char, "}")

    def _member(self, key: str, char: str) -> Generator[None, str, str]:
        """A value that starts with `char`; returns the first character after it."""
        if key == "name" and char == '"':
            self.name = yield from _string(char)
            return (yield from _next_token())
        if key in _ARGUMENTS:
            return (yield from self._arguments(char))
        return (yield from _value(char))

    def _arguments(self, char: str) -> Generator[None, str, str]:
        if char == '"':  # some models write the object's text
            self._more((yield from _string(char)))
            return (yield from _next_token())
        if char == "{":
            return (yield from _value(char, self._more))
        after = yield from _value(char)
        self._more("{}")
        return after

    def _more(self, text: str) -> None:
        self._fragment += text


def _expect(char: str, wanted: str) -> None:
    if char != wanted:
        raise _NoCall


def _next_token() -> Generator[None, str, str]:
    """The next character that is no space."""
    char = " "
    while char in _SPACE:
        char = yield
    return char


def _string(char: str) -> Generator[None, str, str]:
    """A JSON string whose quote is `char`, decoded."""
    _expect(char, '"')
    raw, escaped = char, False
    while True:
        char = yield
        raw += char
        if char == '"' and not escaped:
            break
        escaped = char == "\\" and not escaped
    try:
        decoded: str = json.loads(raw, strict=False)
        decoded.encode()  # half a surrogate pair may be escaped, and is no text
    except ValueError:
        raise _NoCall from None
    return decoded


def _value(char: str, tell: Callable[[str], None] = lambda char: None) -> Generator[None, str, str]:
    """Pass over a value that starts with `char`, telling of each of its characters; returns the first one
    after it that is no space."""
    depth, quoted, escaped = 0, False, False
    while quoted or depth or char not in ",}":
        tell(char)
        if quoted:
            quoted = char != '"' or escaped
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if depth <= 0:
                return (yield from _next_token())
        char = yield
    return char
