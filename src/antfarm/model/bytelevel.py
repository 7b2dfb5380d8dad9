"""The byte alphabet of byte-level BPE vocabularies.

Each byte is written as one printable character: printable Latin-1 bytes as themselves, all others as
U+0100 onwards (GPT-2's `bytes_to_unicode`).
"""

from __future__ import annotations

_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

BYTE_TO_CHAR = [chr(byte) if byte in _PRINTABLE else chr(0x100 + _OTHERS.index(byte)) for byte in range(256)]
CHAR_TO_BYTE = {char: byte for byte, char in enumerate(BYTE_TO_CHAR)}
