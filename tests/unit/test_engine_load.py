"""Loading: memory as announced, nothing left behind, and clear refusals."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support import shards
from support.mapped import resident
from support.models import Models

from antfarm.engine import ARCHITECTURES, Engine, backends, features, ggml
from antfarm.errors import AntfarmError, Reason
from antfarm.model import synthetic
from antfarm.model.gguf import GgufFile
from antfarm.types import Part, RunOptions, Span


def refusal(path: Path, part: Part | None = None, **options: Any) -> AntfarmError:
    with GgufFile.open(path) as file, pytest.raises(AntfarmError) as raised:
        whole = shards.parts(file.facts, [1])[0]
        Engine.load(file, part or whole, RunOptions(**options), threads=1)
    return raised.value


def patched(path: Path, old: bytes, new: bytes, out: Path) -> Path:
    """A copy of a model with one name in its header changed for another of the same length."""
    assert len(old) == len(new)
    data = path.read_bytes()
    assert data.count(old) >= 1
    out.write_bytes(data.replace(old, new))
    return out


def test_the_cpu_backend_says_what_it_is_built_with() -> None:
    assert "CPU" in backends()
    assert features()["LLAMAFILE"] == "1"
    assert set(ARCHITECTURES) == {"llama", "qwen2", "qwen3"}


def test_of_the_file_no_more_is_held_than_is_being_copied(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    synthetic.write(path, replace(synthetic.SHAPES["tiny-llama-wide"], vocabulary=20_000), "f32")
    held: list[int] = []
    with GgufFile.open(path) as file:
        part = shards.parts(file.facts, [1])[0]
        header = resident(path)
        load = Engine.load(
            file, part, RunOptions(), threads=1, progress=lambda *_: held.append(resident(path) - header)
        )
        load.close()
    assert len(held) > 10
    assert max(held) < 8 << 20  # the embedding has 20 MB


def test_the_head_is_read_first_while_little_else_is_held(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GgufFile.open(models.path("tiny-llama", "q4_0")) as file:
        names: list[str] = []
        read = file.read

        def noted(name: str, *slices: Span) -> object:
            names.append(name)
            return read(name, *slices)

        monkeypatch.setattr(file, "read", noted)
        Engine.load(file, shards.parts(file.facts, [1])[0], RunOptions(), threads=1).close()
        rest = [name for name in file.tensors if name != "output.weight"]
    assert list(dict.fromkeys(names)) == ["output.weight", *rest]


def test_memory_is_what_is_allocated(models: Models) -> None:
    with GgufFile.open(models.path("tiny-llama", "q8_0")) as file:
        part = shards.parts(file.facts, [1])[0]
        options = RunOptions(context=300, slots=3)
        engine = Engine.load(file, part, options, threads=1)
        total = sum(fact.bytes for fact in file.facts.tensors)
        facts = file.facts
    assert total <= engine.memory.weights < total + 100 * len(facts.tensors)
    rows = 300 * 3 * facts.layers * facts.kv_heads * facts.head_dim * 2  # keys and values
    assert rows * 2 <= engine.memory.kv_cache < rows * 2 + 4096
    assert 0 < engine.memory.compute < 16 << 20
    engine.close()


def test_progress_counts_every_byte_once(models: Models) -> None:
    seen: list[tuple[int, int]] = []
    with GgufFile.open(models.path("tiny-llama")) as file:
        part = shards.parts(file.facts, [2], heads=[1], ffn=[32])[1]
        Engine.load(
            file, part, RunOptions(), threads=1, progress=lambda done, total: seen.append((done, total))
        ).close()
    done = [each for each, _ in seen]
    assert done == sorted(done)
    assert {total for _, total in seen} == {done[-1]}


PEAK = """
import json, resource, sys
import numpy as np
from antfarm.batch import Batch
from antfarm.engine import Engine
from antfarm.model.gguf import GgufFile
from antfarm.types import Part, RunOptions, Span

def peak():
    return next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith("VmHWM"))

before = peak()
with GgufFile.open(sys.argv[1]) as file:
    facts, ranks = file.facts, int(sys.argv[2])
    part = Part(0, 0, 0, ranks, Span(0, 2 * facts.layers), Span(0, facts.kv_heads // ranks),
                Span(0, facts.feed_forward // ranks))
    engine = Engine.load(file, part, RunOptions(context=1024, slots=2), threads=1)
reduce = (lambda partial, total: np.copyto(total, partial)) if ranks > 1 else None
index = np.arange(128, dtype=np.int32)
rows = engine.forward(Batch(np.zeros_like(index), index, index[-1:]), engine.embed(index), reduce)
engine.logits(rows[-1:])
print(json.dumps([engine.memory.total, peak() - before]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's peak memory")
@pytest.mark.parametrize("ranks", [1, 2])
def test_peak_memory_stays_within_what_is_announced(tmp_path: Path, ranks: int) -> None:
    """While loading, with repacking and cut columns, and while running; +10 %."""
    path = tmp_path / "large.gguf"
    shape = replace(synthetic.SHAPES["llama-1b"], layers=4)
    synthetic.write(path, shape, "q4_0")
    result = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), str(ranks)], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    announced, peak = json.loads(result.stdout)
    assert peak < 1.1 * announced
    assert announced < 1.2 * peak  # and no more is announced than is used


def test_closing_gives_everything_back(models: Models) -> None:
    process = psutil.Process()
    with GgufFile.open(models.path("tiny-llama")) as file:
        parts = shards.parts(file.facts, [2], heads=[1], ffn=[32])
        sizes: list[tuple[int, int]] = []
        for turn in range(60):
            for part in parts:
                engine = Engine.load(file, part, RunOptions(context=512), threads=1)
                index = np.arange(3, dtype=np.int32)
                batch = shards.chunk(0, 0, 3)
                rows = np.zeros((3, file.facts.embedding), np.float32)
                engine.forward(batch, rows, lambda partial, total: np.copyto(total, partial))
                if part.lead:
                    engine.logits(engine.embed(index)[-1:])
                engine.close()
                engine.close()
            if turn >= 10:
                sizes.append((process.memory_info().rss, process.num_threads()))
    assert sizes[-1][0] - sizes[0][0] < 2 << 20  # one engine takes more
    assert sizes[-1][1] == sizes[0][1]


def test_a_failed_load_gives_everything_back(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    freed = []
    free = ggml.Backend.free
    monkeypatch.setattr(ggml.Backend, "free", lambda self: (freed.append(self), free(self)))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with GgufFile.open(models.path("tiny-llama")) as file, pytest.raises(KeyboardInterrupt):
        Engine.load(file, shards.parts(file.facts, [1])[0], RunOptions(), threads=1, progress=stop)
    assert len(freed) == 1


def test_unknown_architectures_are_refused(models: Models, tmp_path: Path) -> None:
    path = patched(models.path("tiny-llama"), b"llama", b"lemma", tmp_path / "other.gguf")
    error = refusal(path)
    assert error.reason == Reason.UNSUPPORTED_ARCHITECTURE
    assert "lemma" in error.message
    assert "llama, qwen2, qwen3" in error.hint


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (b"blk.1.attn_norm.weight", b"blk.1.attn_sink.weight", "attn_sink"),  # one too many, one too few
        (b"blk.0.ffn_gate.weight", b"blk.0.ffn_mate.weight", "ffn_mate"),
        (b"blk.1.ffn_up.weight", b"blk.9.ffn_up.weight", "blk.9.ffn_up.weight"),  # there is no layer 9
        (b"blk.1.ffn_up.weight", b"blk.x.ffn_up.weight", "blk.x.ffn_up.weight"),
    ],
)
def test_what_would_be_silently_wrong_is_refused(
    models: Models, tmp_path: Path, old: bytes, new: bytes, named: str
) -> None:
    error = refusal(patched(models.path("tiny-llama"), old, new, tmp_path / "odd.gguf"))
    assert error.reason == Reason.UNSUPPORTED_ARCHITECTURE
    assert named in error.message


def test_features_that_no_graph_computes_are_refused(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = GgufFile.hparam

    def with_key(key: str, value: Any) -> None:
        def hparam(self: GgufFile, name: str, *default: Any) -> Any:
            return value if name == key else plain(self, name, *default)

        monkeypatch.setattr(GgufFile, "hparam", hparam)

    for key, value in {"expert_count": 8, "rope.scaling.type": "longrope", "attention.causal": False}.items():
        with_key(key, value)
        error = refusal(models.path("tiny-llama"))
        assert error.reason == Reason.UNSUPPORTED_ARCHITECTURE
        assert str(value) in error.message
    with_key("attention.sliding_window", 256)
    assert "256" in refusal(models.path("tiny-llama"), context=257).message
    with GgufFile.open(models.path("tiny-llama")) as file:
        Engine.load(file, shards.parts(file.facts, [1])[0], RunOptions(context=256), threads=1).close()


@pytest.mark.parametrize(
    "options",
    [{"backend": "CUDA77"}, {"kv_type": "q4_k"}, {"kv_type": "nonsense"}, {"slots": -1}, {"chunk": 0}],
)
def test_bad_settings_are_refused(models: Models, options: dict[str, Any]) -> None:
    assert refusal(models.path("tiny-llama"), **options).reason == Reason.BAD_SETTING


def test_a_cut_through_a_block_is_refused(models: Models) -> None:
    with GgufFile.open(models.path("tiny-llama", "q8_0")) as file:
        whole = shards.parts(file.facts, [1])[0]
    cut = Part(0, 0, 0, 2, whole.halves, whole.kv_heads, Span(0, 33))
    error = refusal(models.path("tiny-llama", "q8_0"), cut)
    assert error.reason == Reason.SPLIT_IMPOSSIBLE
    assert "ffn_down" in error.message


def test_ggml_speaks_through_logging(models: Models, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG, "antfarm.ggml"),
        GgufFile.open(models.path("tiny-llama", "q4_0")) as file,
    ):
        Engine.load(file, shards.parts(file.facts, [1])[0], RunOptions(), threads=1).close()
    assert all(record.levelno == logging.DEBUG for record in caplog.records)
