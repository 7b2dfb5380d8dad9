"""Byte-level BPE (GGUF's tokenizer model "gpt2"), on the `tokenizers` library.

Each byte is written as one printable character: printable Latin-1 bytes as themselves, all others as
U+0100 onwards (GPT-2's `bytes_to_unicode`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import tokenizers
from tokenizers import models, pre_tokenizers

from antfarm.model.pretokenize import PreTokenizer, word_too_long

PIECE = 1 << 15  # characters encoded at once: the library takes some 100 to 500 bytes for each
_UNSURE = 4  # words at a piece's end that may go on, or be cut otherwise, in the whole text

_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

BYTE_TO_CHAR = [chr(byte) if byte in _PRINTABLE else chr(0x100 + _OTHERS.index(byte)) for byte in range(256)]
_CHAR_TO_BYTE = {char: byte for byte, char in enumerate(BYTE_TO_CHAR)}


class ByteLevelBpe:
    """Merges bytes by rank within the words that a pre-tokenizer cuts."""

    def __init__(self, tokens: Sequence[str], merges: Sequence[str], pre: PreTokenizer) -> None:
        """Raises ValueError when a merge's parts or its result are not tokens."""
        vocabulary = {token: index for index, token in enumerate(tokens)}
        pairs = [_pair(merge) for merge in merges]
        try:
            model = models.BPE(vocabulary, pairs, ignore_merges=pre.whole_words)
        except Exception as error:  # noqa: BLE001 - all that the library raises
            raise ValueError(str(error)) from None
        self._tokenizer = tokenizers.Tokenizer(model)
        splits = [
            pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated") for pattern in pre.patterns
        ]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])

    def encode(self, text: str, *, starts: bool) -> Iterator[list[int]]:
        """The ids of a text, of a long one piece by piece, cut where the pre-tokenizer cuts words: its
        patterns never look back, so from there on they cut the rest as they do in the whole.

        `starts` (at the text's start or after a special token) makes no difference here.
        Raises `invalid-request` for a word of boundless length.
        """
        start = 0
        while len(text) - start > PIECE:
            # A batch of one: only batches let other threads run meanwhile, which a long text would stop.
            (found,) = self._tokenizer.encode_batch([text[start : start + PIECE]], add_special_tokens=False)
            words = [word for word in found.word_ids if word is not None]
            if words[-1] < _UNSURE:
                raise word_too_long(PIECE // _UNSURE)
            sure = bisect_left(words, words[-1] - _UNSURE + 1)
            yield found.ids[:sure]
            start += found.offsets[sure][0]
        (last,) = self._tokenizer.encode_batch_fast([text[start:]], add_special_tokens=False)
        yield last.ids

    def piece_bytes(self, token: str) -> bytes:
        """The text of a normal token; characters outside the byte alphabet stand for themselves."""
        try:
            return bytes(map(_CHAR_TO_BYTE.__getitem__, token))
        except KeyError:
            return token.encode()


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
