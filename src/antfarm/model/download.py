"""A file over HTTP, resumed where an earlier attempt ended."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from antfarm.errors import ModelError, Reason
from antfarm.model.wheel import Progress

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_ATTEMPTS = 5  # in a row that bring nothing
_PAUSE_S = 0.5  # before the second attempt; doubles with each
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


def fetch(url: str, part: Path, progress: Progress, headers: Mapping[str, str] | None = None) -> None:
    """Download `url` to the file `part`, going on from what it holds already.

    What the server calls this version of the file is kept beside it (`.version`): a file that has changed
    since is fetched anew. Attempts that make headway are not counted. Raises `download-failed`; OSError
    when the disk refuses.
    """
    transfer = _Transfer(url, part, progress, dict(headers or {}))
    failures = 0
    with httpx.Client(timeout=_TIMEOUT, follow_redirects=True) as client:
        while True:
            before = transfer.held
            try:
                transfer.attempt(client)
                break
            except (httpx.TransportError, _Interrupted) as error:
                failures = 0 if transfer.held > before else failures + 1
                if failures >= _ATTEMPTS:
                    raise _failed(url, f"{type(error).__name__}: {error}") from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise _failed(url, f"{type(error).__name__}: {error}") from None
            time.sleep(_PAUSE_S * 2 ** (failures - 1) if failures else 0)
    transfer.version_file.unlink(missing_ok=True)


class _Interrupted(Exception):
    """The answer ended early, or does not go on where ours ended."""


@dataclass
class _Transfer:
    url: str
    part: Path
    progress: Progress
    headers: dict[str, str]

    @property
    def version_file(self) -> Path:
        return self.part.with_name(self.part.name + ".version")

    @property
    def held(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def attempt(self, client: httpx.Client) -> None:
        """One request, to the end of the file or to an error."""
        headers = {"Accept-Encoding": "identity", **self.headers, **self._range()}
        with client.stream("GET", self.url, headers=headers) as response:
            start, total = self._position(response)
            if total and start == total:
                return
            self._keep_version(response)
            done = self._receive(response, start, total)
        if total and done != total:
            raise _Interrupted(f"the server sent {done} of {total} bytes")

    def _range(self) -> dict[str, str]:
        """Ask for the rest, if the file is still the same; without a version that can't be known."""
        if not self.held or not self.version_file.exists():
            return {}
        return {"Range": f"bytes={self.held}-", "If-Range": self.version_file.read_text("utf-8")}

    def _position(self, response: httpx.Response) -> tuple[int, int]:
        """Where this answer's body starts in the file, and the file's size (0: unknown)."""
        code = response.status_code
        if code == 200:
            return 0, int(response.headers.get("Content-Length", 0))
        if code in (206, 416):
            return self._resumed(response)
        if code >= 500:
            raise _Interrupted(f"the server answers {code}")
        raise _failed(self.url, f"the server answers {code} {response.reason_phrase}")

    def _resumed(self, response: httpx.Response) -> tuple[int, int]:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        start, size = match.groups() if match else (None, None)
        total = int(size) if size and size.isdigit() else 0
        held = self.held
        if (response.status_code == 206 and start == str(held)) or (start is None and total == held > 0):
            return held, total
        self.part.unlink(missing_ok=True)
        raise _Interrupted("the server does not go on where the last download ended")

    def _keep_version(self, response: httpx.Response) -> None:
        tag = response.headers.get("ETag", "")
        version = response.headers.get("Last-Modified") if tag.startswith("W/") or not tag else tag
        if version and version.isascii():  # else it can't be sent back
            self.version_file.write_text(version, "utf-8")
        else:
            self.version_file.unlink(missing_ok=True)

    def _receive(self, response: httpx.Response, start: int, total: int) -> int:
        done = start
        with self.part.open("ab" if start else "wb") as out:
            self.progress(done, total)
            for chunk in response.iter_raw():
                out.write(chunk)
                done += len(chunk)
                self.progress(done, total)
        return done


def shown(url: str) -> str:
    """A URL for people to read: without credentials and query."""
    return re.sub("//[^/@]*@", "//", re.split("[?#]", url, maxsplit=1)[0])


def _failed(url: str, why: str) -> ModelError:
    return ModelError(
        Reason.DOWNLOAD_FAILED,
        f"{shown(url)} could not be fetched: {why}",
        hint="check the address and the network; pulling again goes on where this ended",
    )
