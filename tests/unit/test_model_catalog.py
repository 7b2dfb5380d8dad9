"""References to models: names, paths, URLs, and what is not there."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from support.models import Models

from antfarm.errors import ModelError, Reason
from antfarm.model.catalog import Catalog, default_name


def no_progress(done: int, total: int) -> None:
    pass


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("smollm2", "smollm2"),
        ("/models/My Model.Q4_0.gguf", "My-Model.Q4_0"),
        ("tiny.gguf", "tiny"),
        ("https://host/a/Tiny%20One.gguf?token=x/y.gguf#z", "Tiny-One"),
        ("https://host/..", "model"),
        ("hf:owner/repo/deep/file.gguf", "file"),
    ],
)
def test_default_names(ref: str, name: str) -> None:
    assert default_name(ref) == name


def test_paths_and_pulled_files_resolve(tmp_path: Path, models: Models) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    catalog = Catalog(folder)
    source = models.path("tiny-qwen2")
    assert catalog.resolve(str(source)) == source
    assert catalog.pull(str(source), no_progress) == source
    shutil.copy(source, folder / "mine.gguf")
    (folder / "half.gguf.part").write_bytes(b"GGUF")
    assert catalog.resolve("mine") == folder / "mine.gguf"
    assert catalog.pull("mine", no_progress) == folder / "mine.gguf"
    assert [(each.name, each.bytes) for each in catalog.installed()] == [("mine", source.stat().st_size)]


def test_catalog_entries_are_named_with_what_to_do(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "none")
    assert [entry.name for entry in catalog.entries()] == ["smollm2"]
    assert catalog.installed() == []
    with pytest.raises(ModelError, match="not on this host") as caught:
        catalog.resolve("smollm2")
    assert (caught.value.reason, caught.value.hint) == (Reason.MODEL_UNKNOWN, "antc pull smollm2")


@pytest.mark.parametrize(
    "ref", ["nothing", "", ".", "..", "-rf", "a b", "x" * 200, "/none/x.gguf", "../etc/passwd", "x/" * 3000]
)
def test_unknown_models(tmp_path: Path, ref: str) -> None:
    for act in (Catalog(tmp_path).resolve, lambda each: Catalog(tmp_path).pull(each, no_progress)):
        with pytest.raises(ModelError) as caught:
            act(ref)
        assert caught.value.reason is Reason.MODEL_UNKNOWN
        assert caught.value.hint
    assert "smollm2" in str(caught.value) or "/" in ref
    assert list(tmp_path.iterdir()) == []


def test_a_url_is_shown_without_its_credentials(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        Catalog(tmp_path).resolve("https://me:secret@host/m.gguf?token=secret")
    assert "https://host/m.gguf" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_hugging_face_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog(tmp_path)
    with pytest.raises(ModelError, match="names no file"):
        catalog.pull("hf:owner/file.gguf", no_progress)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match="huggingface_hub") as caught:
        catalog.pull("hf:owner/repo/file.gguf", no_progress)
    assert "antfarm[hf]" in caught.value.hint
