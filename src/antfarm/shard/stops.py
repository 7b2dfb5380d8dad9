"""Stop strings in a stream of text: nothing of one ever gets out, and nothing else is held for long."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Cuts a stream of text before the stop string that is complete first.

    Of several that end at the same character, the one that starts first counts. How the text is
    divided into pushes does not change the outcome.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._prefixes = frozenset(stop[:end] for stop in stops for end in range(1, len(stop)))
        self._longest = max(map(len, self._prefixes), default=0)
        self.held = ""  # the end of the stream, while it may be the start of a stop string

    def push(self, text: str) -> tuple[str, bool]:
        """The text that can be released now, and whether a stop string ended the stream after it."""
        text = self.held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.held = ""
            return text[: min(found)[1]], True
        keep = self._beginning_at_end(text)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """What was held, once no more text comes: it was no stop string after all."""
        text, self.held = self.held, ""
        return text

    def _beginning_at_end(self, text: str) -> int:
        """The length of the longest beginning of a stop string that `text` ends with."""
        lengths = range(min(self._longest, len(text)), 0, -1)
        return next((n for n in lengths if text[-n:] in self._prefixes), 0)
