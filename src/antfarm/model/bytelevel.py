"""Byte-level BPE (GGUF's tokenizer model "gpt2"), on the `tokenizers` library.

Each byte is written as one printable character: printable Latin-1 bytes as themselves, all others as
U+0100 onwards (GPT-2's `bytes_to_unicode`).
"""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import models, pre_tokenizers

from antfarm.model.pretokenize import PreTokenizer

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

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """`starts` (at the text's start or after a special token) makes no difference here."""
        # A batch of one: only batches let other threads run meanwhile, which a long text would stop.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def piece_bytes(self, token: str) -> bytes:
        """The text of a normal token; characters outside the byte alphabet stand for themselves."""
        try:
            return bytes(map(_CHAR_TO_BYTE.__getitem__, token))
        except KeyError:
            return token.encode()


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
