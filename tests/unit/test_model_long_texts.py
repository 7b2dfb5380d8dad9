"""Long texts are encoded piece by piece, to the same ids as in one go, in bounded memory."""

from __future__ import annotations

from itertools import chain, product

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from support.models import Models

from antfarm.errors import Reason, RequestError
from antfarm.model import bytelevel
from antfarm.model.bytelevel import BYTE_TO_CHAR, ByteLevelBpe
from antfarm.model.gguf import GgufFile
from antfarm.model.pretokenize import PRE_TOKENIZERS, PreTokenizer
from antfarm.model.sentencepiece import LONGEST_WORD, SentencePiece
from antfarm.model.tokenizer import Tokenizer

# What patterns tell apart: cases, digits, apostrophes, kinds of space, line ends, marks, scripts.
LETTERS = ["a", "s", "B", "1", "2", "'", " ", "\n", "\r", "\t", "!", "/"]
OTHERS = [
    "é",
    "中",
    "ア",
    "한",
    "\u0301",
    "\u00a0",
    "，",
    "≈",
    "😀",
    "'s",
    "'ll",
    "   ",
    "\n\n",
    "123",
    "aaaa",
]


def _vocabulary(pre: PreTokenizer) -> ByteLevelBpe:
    """All pairs and pairs of pairs merge, so that a cut inside a word shows."""
    letters = [BYTE_TO_CHAR[ord(letter)] for letter in LETTERS]
    pairs = [(a, b) for a, b in product(letters, letters)]
    fours = [(a + a, b + b) for a, b in product(letters, letters)]
    merges = [f"{left} {right}" for left, right in [*pairs, *fours]]
    return ByteLevelBpe([*BYTE_TO_CHAR, *(merge.replace(" ", "") for merge in merges)], merges, pre)


VOCABULARIES = {pre: _vocabulary(pre) for pre in dict.fromkeys(PRE_TOKENIZERS.values())}


@pytest.mark.parametrize("pre", VOCABULARIES, ids=range(len(VOCABULARIES)))
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([*LETTERS, *OTHERS]), max_size=120).map("".join), st.sampled_from([20, 30, 50])
)
def test_pieces_have_the_ids_of_the_whole(pre: PreTokenizer, text: str, size: int) -> None:
    model = VOCABULARIES[pre]
    (whole,) = model.encode(text, starts=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bytelevel, "PIECE", size)
        try:
            assert [*chain.from_iterable(model.encode(text, starts=True))] == whole
        except RequestError:  # four words fill a piece as small as these
            reject()


def test_a_long_text_comes_in_pieces_and_a_reader_may_stop() -> None:
    (model, *_) = VOCABULARIES.values()
    pieces = model.encode("ant! " * 100_000, starts=True)
    assert 0 < len(next(pieces)) < bytelevel.PIECE
    assert sum(1 for _ in pieces) > 5


@pytest.mark.parametrize("letter", ["a", "中"])
def test_a_word_without_end_is_refused(models: Models, letter: str) -> None:
    with GgufFile.open(models.path("tiny-llama")) as file:
        tokenizer = Tokenizer.from_gguf(file)
    assert len(tokenizer.encode(letter * bytelevel.PIECE)) > 1000
    with pytest.raises(RequestError, match="a word of over 8192 characters") as caught:
        tokenizer.encode(letter * 1_000_000)
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_sentencepiece_refuses_a_word_without_end_where_it_merges_within_words() -> None:
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), "a"]
    model = SentencePiece(tokens, [0.0] * len(tokens), space_prefix=True)
    assert sum(map(len, model.encode("a " * 100_000, starts=True))) > 100_000
    with pytest.raises(RequestError, match=f"a word of over {LONGEST_WORD} characters"):
        [*model.encode("a a" + "a" * LONGEST_WORD, starts=True)]
