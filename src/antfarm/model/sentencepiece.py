"""SentencePiece BPE with byte fallback (GGUF's tokenizer model "llama").

Of all neighbours whose concatenation is a token, those with the best score merge first, the leftmost of
equals first: the algorithm of SentencePiece's BPE model (Kudo and Richardson, 2018).
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import itemgetter

from antfarm.model.pretokenize import word_too_long

_SPACE = "▁"
_WORD = re.compile(f"{_SPACE}*[^{_SPACE}]+|{_SPACE}+")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_CACHED_WORDS = 1 << 14
_CACHED_LENGTH = 32  # characters
LONGEST_WORD = 1 << 16  # characters


class SentencePiece:
    """Merges characters by score; characters that are no token become byte tokens."""

    def __init__(self, tokens: Sequence[str], scores: Sequence[float], *, space_prefix: bool) -> None:
        """`space_prefix`: a text that starts, and one after a special token, gets a space in front.
        Raises ValueError when byte tokens are missing."""
        self._ids = {token: index for index, token in enumerate(tokens)}
        self._scores = scores
        self._space_prefix = space_prefix
        try:
            self._bytes = [self._ids[f"<0x{byte:02X}>"] for byte in range(256)]
        except KeyError as error:
            raise ValueError(f"the vocabulary has no byte token {error}") from None
        # Where no token has a space behind a letter, merges never cross from one word to the next.
        self._by_words = not any(_SPACE in token.lstrip(_SPACE) for token in tokens)
        self._cached = lru_cache(_CACHED_WORDS)(self._merge)

    def encode(self, text: str, *, starts: bool) -> Iterator[list[int]]:
        """The ids of a text, word by word where merges stay within words.

        `starts`: at the text's start or after a special token. Raises `invalid-request` for a word of
        boundless length.
        """
        if starts and self._space_prefix:
            text = " " + text
        text = text.replace(" ", _SPACE)
        for word in map(itemgetter(0), _WORD.finditer(text)) if self._by_words else [text]:
            if self._by_words and len(word) > LONGEST_WORD:
                raise word_too_long(LONGEST_WORD)
            yield self._cached(word) if len(word) <= _CACHED_LENGTH else self._merge(word)

    def piece_bytes(self, token: str) -> bytes:
        """The text of a normal or byte token."""
        match = _BYTE.fullmatch(token)
        return bytes([int(match[1], 16)]) if match else token.replace(_SPACE, " ").encode()

    def _merge(self, text: str) -> list[int]:
        symbols = list(text)
        before = [*range(-1, len(symbols) - 1)]
        after = [*range(1, len(symbols)), -1]
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left < 0 or right < 0:
                return
            joined = symbols[left] + symbols[right]
            token = self._ids.get(joined)
            if token is not None:
                heapq.heappush(queue, (-self._scores[token], left, right, joined))

        for left in range(len(symbols) - 1):
            offer(left, left + 1)
        while queue:
            _, left, right, joined = heapq.heappop(queue)
            if not symbols[right] or symbols[left] + symbols[right] != joined:
                continue  # one of them has merged otherwise since
            symbols[left], symbols[right] = joined, ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [token for symbol in symbols if symbol for token in self._symbol_ids(symbol)]

    def _symbol_ids(self, symbol: str) -> list[int]:
        token = self._ids.get(symbol)
        return [token] if token is not None else [self._bytes[byte] for byte in symbol.encode()]
