"""Text to tokens and back, from a GGUF file's metadata."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Protocol

import numpy as np
from gguf.constants import TokenType
from numpy.typing import NDArray

from antfarm.errors import ModelError, Reason, RequestError
from antfarm.model.bytelevel import ByteLevelBpe
from antfarm.model.gguf import GgufFile
from antfarm.model.header import Metadata
from antfarm.model.pretokenize import PRE_TOKENIZERS
from antfarm.model.sentencepiece import SentencePiece

# Tokens that end an answer, whatever the file's metadata says of them.
_ENDS = frozenset(
    [
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<end_of_turn>",
        "<EOT>",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
    ]
)


class _Model(Protocol):
    """What turns plain text into ids; special tokens are not its business."""

    def encode(self, text: str, *, starts: bool) -> Iterator[list[int]]: ...
    def piece_bytes(self, token: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Kind:
    """A tokenizer model with what its family does about BOS and leading spaces by default."""

    model: _Model
    bos: int | None
    eos: int | None
    adds_bos: bool
    space_prefix: bool


class Tokenizer:
    """The vocabulary of one model. Ids beyond it (padding rows of the embedding) are empty text."""

    def __init__(self, kind: _Kind, metadata: Metadata, tokens: Sequence[str]) -> None:
        self._kind = kind
        self._tokens = tokens
        self.size = len(tokens)
        self.longest = max(map(len, tokens))  # characters that one token stands for, at most
        self.bos = self._special_id(metadata, "bos", kind.bos)
        self.eos = self._special_id(metadata, "eos", kind.eos)
        self.adds_bos = metadata.typed("tokenizer.ggml.add_bos_token", bool, kind.adds_bos)
        self._adds_eos = metadata.typed("tokenizer.ggml.add_eos_token", bool, default=False)
        ends = [self._special_id(metadata, name, None) for name in ("eot", "eom")]
        by_text = [index for index, token in enumerate(tokens) if token in _ENDS]
        self.eog: frozenset[int] = frozenset(each for each in (self.eos, *ends, *by_text) if each is not None)
        types = metadata.typed("tokenizer.ggml.token_type", np.ndarray, np.empty(0))[: self.size]
        self._hidden = self.eog.union(_where(types, TokenType.CONTROL, TokenType.UNKNOWN))
        users = _where(types, TokenType.USER_DEFINED) - self._hidden
        self._plain = self._hidden | users
        self._ids = {tokens[index]: index for index in self._plain if tokens[index]}
        self._any_special = _alternatives(self._ids)
        self._user_defined = _alternatives(tokens[index] for index in users)

    @classmethod
    def from_gguf(cls, file: GgufFile) -> Tokenizer:
        """Raises `unsupported-tokenizer`, naming what the file asks for."""
        metadata = file.metadata
        name = metadata.typed("tokenizer.ggml.model", str, "none")
        if name not in _KINDS:
            raise _unsupported(file, f"has the tokenizer {name!r}; supported are {', '.join(_KINDS)}")
        tokens: list[str] = metadata.typed("tokenizer.ggml.tokens", list, [])
        if not tokens:
            raise _unsupported(file, "has no vocabulary")
        try:
            return cls(_KINDS[name](metadata, tokens), metadata, tokens)
        except ValueError as error:
            raise _unsupported(file, f"has a bad vocabulary: {error}") from None

    def encode(self, text: str, *, special: bool = True, bos: bool | None = None) -> list[int]:
        """Token ids of a text: all that `pieces` gives."""
        return [*chain.from_iterable(self.pieces(text, special=special, bos=bos))]

    def pieces(
        self, text: str, *, special: bool = True, bos: bool | None = None, ended: bool = False
    ) -> Iterator[list[int]]:
        """Token ids of a text, of a long one piece by piece, so that the memory it takes is bounded and a
        reader may stop early.

        `special` reads the names of control tokens as those tokens, else as plain text. `bos` None does
        as the file says, and never doubles a BOS that the text starts with. `ended`: the text is whole
        and nothing will follow, so it ends with EOS where the file says that texts do. Raises
        `invalid-request` when the text is not valid Unicode, or has a word of boundless length.
        """
        _check_unicode(text)
        pieces = self._encode(text, self._any_special if special else self._user_defined, starts=True)
        first = next(pieces, [])
        wanted = self.adds_bos and first[:1] != [self.bos] if bos is None else bos
        last = first
        yield [self.bos, *first] if wanted and self.bos is not None else first
        for piece in pieces:
            last = piece or last
            yield piece
        if ended and self._adds_eos and self.eos is not None and last[-1:] != [self.eos]:
            yield [self.eos]

    def encode_within(self, text: str) -> list[int]:
        """Token ids of a text that stands inside another: their bytes are its bytes, nothing in front."""
        return [*chain.from_iterable(self._encode(text, self._user_defined, starts=False))]

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of whole tokens, as the inverse of `encode`; bytes that are not UTF-8 become U+FFFD.

        `special` gives control tokens by name, else they are left out.
        """
        kept = (token for token in tokens if special or token not in self._hidden)
        texts = []
        for plain, run in groupby(kept, self._plain.__contains__):
            text = b"".join(map(self.token_bytes, run)).decode("utf-8", "replace")
            texts.append(text.removeprefix(" ") if self._kind.space_prefix and not plain else text)
        return "".join(texts)

    def token_bytes(self, token: int) -> bytes:
        """A token's own bytes, which may be part of a character; of a control token, its name."""
        if not 0 <= token < self.size:
            return b""
        text = self._tokens[token]
        return text.encode() if token in self._plain else self._kind.model.piece_bytes(text)

    def hidden(self, token: int) -> bool:
        """Whether a token is control, with no text of its own in an answer."""
        return token in self._hidden

    def _encode(self, text: str, special: re.Pattern[str] | None, *, starts: bool) -> Iterator[list[int]]:
        after_special = starts
        for index, part in enumerate(special.split(text) if special else [text]):
            if index % 2:
                yield [self._ids[part]]
                after_special = starts
            elif part:
                yield from self._kind.model.encode(part, starts=after_special)
                after_special = False

    def _special_id(self, metadata: Metadata, name: str, default: int | None) -> int | None:
        value = metadata.typed(f"tokenizer.ggml.{name}_token_id", int, -1 if default is None else default)
        return value if 0 <= value < self.size else None


class TextStream:
    """The text of a growing answer. Each piece holds whole characters only."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that this token completes."""
        if self._tokenizer.hidden(token):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """What an unfinished character at the end becomes (U+FFFD), or nothing."""
        return self._decoder.decode(b"", final=True)


def _byte_level(metadata: Metadata, tokens: list[str]) -> _Kind:
    name = metadata.typed("tokenizer.ggml.pre", str, "default")
    if name not in PRE_TOKENIZERS:
        raise ValueError(f"the pre-tokenizer {name!r} is unknown")
    pre = PRE_TOKENIZERS[name]
    model = ByteLevelBpe(tokens, metadata.typed("tokenizer.ggml.merges", list, []), pre)
    return _Kind(model, None, None, adds_bos=pre.bos, space_prefix=False)


def _sentence_piece(metadata: Metadata, tokens: list[str]) -> _Kind:
    scores: list[float] = metadata.typed("tokenizer.ggml.scores", np.ndarray, np.empty(0)).tolist()
    if len(scores) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens have {len(scores)} scores")
    prefix = metadata.typed("tokenizer.ggml.add_space_prefix", bool, True)
    model = SentencePiece(tokens, scores, space_prefix=prefix)
    return _Kind(model, bos=1, eos=2, adds_bos=True, space_prefix=prefix)


_KINDS: dict[str, Callable[[Metadata, list[str]], _Kind]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
}


def _where(types: NDArray[Any], *wanted: TokenType) -> frozenset[int]:
    return frozenset(np.flatnonzero(np.isin(types, wanted)).tolist())


def _alternatives(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Matches any of the texts, the longest first, as a group: `split` alternates text and match."""
    ordered = sorted(filter(None, texts), key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, ordered))})") if ordered else None


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            Reason.INVALID_REQUEST,
            f"the text has half a surrogate pair at character {error.start}",
            hint="send valid Unicode",
        ) from None


def _unsupported(file: GgufFile, what: str) -> ModelError:
    return ModelError(
        Reason.UNSUPPORTED_TOKENIZER, f"{file.path}: the model {what}", hint="take another model file"
    )
