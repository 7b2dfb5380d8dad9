"""Models and splits that a colony must refuse: a stable reason, a helpful sentence, nothing left running."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.antc import FREE_PORTS, Antc, eventually
from support.models import Models

from antfarm.model.synthetic import SHAPES, write

NORM = b"output_norm.weight"


@pytest.fixture(scope="module")
def antc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Antc]:
    """A colony of four foragers."""
    made = Antc(tmp_path_factory.mktemp("colony"))
    try:
        made.run("up", "--foragers", "4", *FREE_PORTS)
        yield made
    finally:
        left = made.close()
    assert not left, f"left running: {left}"


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def with_type(kind: int) -> Callable[[bytes], bytes]:
    """Another ggml type in the header's entry of the output norm, a vector."""

    def changed(data: bytes) -> bytes:
        at = data.index(NORM) + len(NORM) + 4 + 8  # after its dimensions
        return data[:at] + struct.pack("<I", kind) + data[at + 4 :]

    return changed


def with_experts(data: bytes) -> bytes:
    """Eight experts in the metadata, and a text that keeps what follows aligned."""
    magic, version, tensors, keys = struct.unpack_from("<4sIQQ", data)
    added = b""
    for key, kind, value in (
        (b"llama.expert_count", 4, struct.pack("<I", 8)),
        (b"x.pad", 8, struct.pack("<Q", 5) + b"....."),
    ):
        added += struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value
    assert len(added) % 32 == 0
    return struct.pack("<4sIQQ", magic, version, tensors, keys + 2) + added + data[24:]


@pytest.mark.parametrize(
    ("change", "reason", "said"),
    [
        (truncated, "model-truncated", "bytes"),
        (with_type(250), "unsupported-tensor-type", "unknown ggml type 250"),
        (with_type(1), "unsupported-tensor-type", "output_norm.weight is of type f16"),
        (with_experts, "unsupported-architecture", "expert_count"),
    ],
    ids=["truncated", "unknown-type", "type-no-kernel-takes", "mixture-of-experts"],
)
def test_a_file_that_can_not_be_run(
    antc: Antc,
    models: Models,
    tmp_path: Path,
    change: Callable[[bytes], bytes],
    reason: str,
    said: str,
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(change(models.path("tiny-llama").read_bytes()))
    assert_refused(antc, path, reason, said)


def test_an_architecture_that_nobody_knows(antc: Antc, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    write(path, replace(SHAPES["tiny-llama"], architecture="antbrain"), "f32")
    assert_refused(antc, path, "unsupported-architecture", "'antbrain' is not supported")


def test_more_ranks_than_kv_heads(antc: Antc, models: Models) -> None:
    path = models.path("tiny-llama")
    told = assert_refused(
        antc, path, "split-impossible", "4 tensor ranks", "--mode", "tensor", "--split", "4"
    )
    assert "3 KV heads: at most 3 tensor ranks; pipeline up to 5 stages" in told


def assert_refused(antc: Antc, path: Path, reason: str, said: str, *more: str) -> str:
    """The load fails with the reason and no process of it stays; what was told."""
    before = {process.pid for process in antc.processes()}
    told = antc.run("load", path, "--name", "bad", *(more or ("--split", "2")), code=1).stderr
    assert f"antc: {reason}: " in told and said in told and "Traceback" not in told, told
    eventually(lambda: {process.pid for process in antc.processes()} <= before, "its shards have ended")
    (failed,) = antc.json("ps")
    assert (failed["state"], failed["failure"]["reason"]) == ("failed", reason)
    assert "bad did not load" in antc.run("unload", "bad", code=1).stderr
    assert antc.json("ps") == []
    return told
