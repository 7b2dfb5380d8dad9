"""GGUF files: facts, slices, and files that are broken in every way."""

from __future__ import annotations

import dataclasses
import mmap
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mapped import resident
from support.models import Models

from antfarm.engine import hyper
from antfarm.errors import AntfarmError, ModelError, Reason
from antfarm.model.gguf import GgufFile
from antfarm.model.header import parse
from antfarm.model.synthetic import SHAPES, write
from antfarm.model.template import ChatTemplate
from antfarm.model.tokenizer import Tokenizer
from antfarm.shard.pooling import pooling_of
from antfarm.split import HostShare, SplitRequest, place
from antfarm.types import RunOptions, Span

MIB = 1 << 20
SMALL = dataclasses.replace(
    SHAPES["tiny-qwen3"], layers=1, embedding=32, feed_forward=32, heads=1, kv_heads=1
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write(path, SMALL, "f16")
    return path.read_bytes()


def test_facts_come_from_the_header(models: Models) -> None:
    shape = SHAPES["tiny-llama"]
    with GgufFile.open(models.path("tiny-llama", "q4_0")) as file:
        facts = file.facts
    assert (facts.architecture, facts.layers, facts.embedding) == ("llama", shape.layers, shape.embedding)
    assert (facts.heads, facts.kv_heads, facts.head_dim) == (shape.heads, shape.kv_heads, 32)
    assert (facts.feed_forward, facts.vocabulary, facts.context) == (224, 512, 512)
    assert facts.bytes == models.path("tiny-llama", "q4_0").stat().st_size
    down = next(tensor for tensor in facts.tensors if tensor.name == "blk.0.ffn_down.weight")
    assert (down.type, down.shape, down.block, down.bytes) == ("q4_0", (224, 96), 32, 224 * 96 // 32 * 18)


def test_the_library_reads_the_same(models: Models) -> None:
    path = models.path("tiny-llama-rich", "q5_0")
    reader = gguf.GGUFReader(path)
    with GgufFile.open(path) as file:
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            ours = file.read(tensor.name)
            assert ours.tobytes() == np.ascontiguousarray(tensor.data).tobytes(), tensor.name
        for key, field in reader.fields.items():
            if not key.startswith("GGUF."):
                ours, theirs = file.metadata[key], field.contents()
                assert (ours.tolist() if isinstance(ours, np.ndarray) else ours) == theirs, key


def test_fingerprint_names_the_header_not_the_weights(tmp_path: Path) -> None:
    for name, shape, seed in (
        ("a", SMALL, 0),
        ("b", SMALL, 1),
        ("c", dataclasses.replace(SMALL, layers=2), 0),
    ):
        write(tmp_path / name, shape, "f16", seed)
    prints = {name: GgufFile.open(tmp_path / name).facts.fingerprint for name in "abc"}
    assert prints["a"] == prints["b"] != prints["c"]


def test_read_takes_rows_and_columns(models: Models) -> None:
    with GgufFile.open(models.path("tiny-llama", "q4_0")) as file:
        whole = file.read("blk.0.ffn_down.weight")  # [96, 7 blocks of 18 bytes]
        part = file.read("blk.0.ffn_down.weight", rows=Span(10, 20), cols=Span(64, 160))
        assert whole.shape == (96, 7 * 18)
        np.testing.assert_array_equal(part, whole[10:20, 2 * 18 : 5 * 18])
        with pytest.raises(ValueError, match="cut a block of 32"):
            file.read("blk.0.ffn_down.weight", cols=Span(0, 40))
        with pytest.raises(ValueError, match="are not in it"):
            file.read("blk.0.ffn_down.weight", rows=Span(90, 97))
        with pytest.raises(KeyError):
            file.read("blk.9.ffn_down.weight")
    np.testing.assert_array_equal(part, whole[10:20, 36:90])  # arrays outlive the file


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="needs madvise")
def test_release_drops_pages_and_reading_touches_only_its_own(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    shape = dataclasses.replace(SHAPES["tiny-llama-wide"], embedding=1024, feed_forward=4096)
    write(path, shape, "f32")
    with GgufFile.open(path) as file:
        before = resident(path)
        assert file.read("blk.1.ffn_up.weight").sum() > 0  # 16 MiB
        assert 15 * MIB < resident(path) - before < 20 * MIB
        file.release("blk.1.ffn_up.weight")
        assert resident(path) - before < 4 * MIB
        assert file.read("blk.1.ffn_up.weight", rows=Span(0, 4)).sum() > 0


def test_opening_does_not_walk_a_vocabulary(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "llama")
    tokens = [f"token number {index}" for index in range(150_000)]
    writer.add_token_list(tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    start = time.process_time()
    file = GgufFile.open(tmp_path / "v.gguf")
    opened = time.process_time()
    assert file.metadata["tokenizer.ggml.tokens"] == tokens
    decoded = time.process_time()
    assert opened - start < 0.2  # measured 0.03
    assert decoded - opened < 0.5  # measured 0.06


def test_all_types_that_ggml_has_are_known() -> None:
    for kind, (block, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        header = _header(tensors=[("t", (block * 2, 3), kind.value)])
        fact = parse(header + bytes(block_bytes * 6 + 32)).tensors["t"]
        assert (fact.type, fact.block, fact.bytes) == (kind.name.lower(), block, block_bytes * 6)


# ---- what is not a model, or not whole


def test_every_truncation_is_named_with_numbers(small: bytes) -> None:
    header = parse(small).size
    for size in {*range(0, header, 7), header - 1, header, header + 1, len(small) - 1}:
        with pytest.raises(ModelError) as caught:
            parse(small[:size])
        assert caught.value.reason is Reason.MODEL_TRUNCATED, size
        assert caught.value.numbers["actual"] == size < int(caught.value.numbers["expected"]) <= len(small)


def test_files_that_are_no_model(tmp_path: Path) -> None:
    def reason(content: bytes) -> Reason:
        (tmp_path / "x.gguf").write_bytes(content)
        with pytest.raises(ModelError) as caught:
            GgufFile.open(tmp_path / "x.gguf")
        assert str(tmp_path / "x.gguf") in caught.value.message
        return caught.value.reason

    assert reason(b"") is Reason.MODEL_TRUNCATED
    assert reason(b"GG") is Reason.MODEL_TRUNCATED
    assert reason(b"<!DOCTYPE html>") is Reason.NOT_A_GGUF
    assert reason(b"PK") is Reason.NOT_A_GGUF
    assert reason(b"GGUF" + struct.pack(">IQQ", 3, 0, 0)) is Reason.UNSUPPORTED_FILE
    assert reason(b"GGUF" + struct.pack("<IQQ", 1, 0, 0)) is Reason.UNSUPPORTED_FILE
    assert reason(_header(pairs=[_pair("split.count", 2, struct.pack("<H", 3))])) is Reason.UNSUPPORTED_FILE
    assert reason(_header(pairs=[_pair("a", 0, b"1"), _pair("a", 0, b"2")])) is Reason.NOT_A_GGUF
    assert reason(_header(tensors=[("t", (32, 1), 99)]) + bytes(64)) is Reason.UNSUPPORTED_TENSOR_TYPE
    assert reason(_header(tensors=[("t", (33, 1), 2)]) + bytes(64)) is Reason.NOT_A_GGUF
    assert reason(_header(tensors=[("t", (1 << 40, 1 << 40), 0)])) is Reason.MODEL_TRUNCATED


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelError) as caught:
            GgufFile.open(path)
        assert caught.value.reason is Reason.MODEL_UNKNOWN


def test_hparams_differing_between_layers_are_refused(tmp_path: Path) -> None:
    def facts(heads: list[int]) -> int:
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
        writer.add_block_count(2)
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(32)
        writer.add_head_count(2)
        writer.add_head_count_kv(heads)
        writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with GgufFile.open(tmp_path / "m.gguf") as file:
            return file.facts.kv_heads

    assert facts([1, 1]) == 1
    with pytest.raises(ModelError, match="differs between layers") as caught:
        facts([1, 2])
    assert caught.value.reason is Reason.UNSUPPORTED_ARCHITECTURE


@settings(max_examples=400, deadline=2000)
@given(data=st.data())
def test_corrupt_headers_end_in_a_typed_error_and_take_no_memory(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, small: bytes
) -> None:
    content = bytearray(small)
    size = parse(small).size
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, size - 9))
        wide = data.draw(st.sampled_from((1, 4, 8)))
        content[at : at + wide] = data.draw(st.binary(min_size=wide, max_size=wide))
    path = tmp_path_factory.getbasetemp() / "corrupt.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with GgufFile.open(path) as file:
            _use(file)
    except AntfarmError:
        pass  # any typed error will do
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 * MIB


WRONG = {
    "large": (10, struct.pack("<Q", 1 << 20)),
    "zero": (4, struct.pack("<I", 0)),
    "huge": (10, struct.pack("<Q", 2**64 - 1)),
    "negative": (5, struct.pack("<i", -1)),
    "nan": (6, struct.pack("<f", float("nan"))),
    "bool": (7, b"\x02"),
    "text": (8, struct.pack("<Q", 3) + b"{{x"),
    "no numbers": (9, struct.pack("<IQ", 4, 0)),
    "numbers": (9, struct.pack("<IQ2I", 4, 2, 7, 9)),
    "no texts": (9, struct.pack("<IQ", 8, 0)),
    "texts": (9, struct.pack("<IQQ", 8, 1, 2) + b"\xff\xfe"),
}


OPTIONAL = [
    "expert_count",
    "attention.causal",
    "attention.sliding_window",
    "pooling_type",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
]


@pytest.mark.parametrize("wrong", WRONG)
def test_metadata_of_wrong_types_ends_in_a_typed_error(small: bytes, tmp_path: Path, wrong: str) -> None:
    header = parse(small)
    tensors = [
        (each.name, each.shape, gguf.GGMLQuantizationType[each.type.upper()].value)
        for each in header.tensors.values()
    ]
    right = {key: _encode(header.metadata[key]) for key in header.metadata}
    for victim in (*right, *(f"qwen3.{key}" for key in OPTIONAL)):
        pairs = [_pair(key, *value) for key, value in {**right, victim: WRONG[wrong]}.items()]
        content = _header(pairs, tensors)
        (tmp_path / "m.gguf").write_bytes(content + bytes(len(small)))
        try:
            with GgufFile.open(tmp_path / "m.gguf") as file:
                _use(file)
        except AntfarmError:
            continue


@settings(max_examples=200, deadline=2000)
@given(st.binary(max_size=400))
def test_garbage_behind_the_magic_ends_in_a_typed_error(garbage: bytes) -> None:
    with pytest.raises(ModelError):
        parse(b"GGUF\x03\x00\x00\x00" + garbage[:16].ljust(16, b"\x01") + garbage[16:])


def _plan(file: GgufFile, mode: str) -> None:
    hosts = [HostShare(name, 1 << 40) for name in "ab"]
    place(file.facts, hosts, SplitRequest(2, mode), RunOptions())


def _use(file: GgufFile) -> None:
    """All that a plan and a load read of a header."""
    for key in file.metadata:
        file.metadata[key]
    for build in (
        lambda: file.facts,
        lambda: Tokenizer.from_gguf(file),
        lambda: ChatTemplate.from_gguf(file),
        lambda: hyper.read(file, 64),
        lambda: pooling_of(file),
        lambda: _plan(file, "tensor"),
        lambda: _plan(file, "pipeline"),
    ):
        try:
            build()
        except AntfarmError:
            continue


def _header(
    pairs: list[bytes] | None = None, tensors: list[tuple[str, tuple[int, ...], int]] | None = None
) -> bytes:
    pairs, tensors = pairs or [], tensors or []
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    for name, shape, kind in tensors:
        out += struct.pack("<Q", len(name)) + name.encode()
        out += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)
    return out


def _encode(value: Any) -> tuple[int, bytes]:
    """A metadata value as its GGUF type and bytes."""
    if isinstance(value, bool):
        return 7, bytes([value])
    if isinstance(value, str):
        return 8, struct.pack("<Q", len(value.encode())) + value.encode()
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, np.ndarray):
        return 9, struct.pack("<IQ", 5, len(value)) + value.astype("<i4").tobytes()
    return 9, struct.pack("<IQ", 8, len(value)) + b"".join(_encode(each)[1] for each in value)


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value
