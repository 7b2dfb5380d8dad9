"""A file over HTTP, from a server that can misbehave in every way that a download has to survive."""

from __future__ import annotations

import contextlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """One file over HTTP. `drops` holds how many bytes of each answer to send before hanging up."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.etag = '"1"'
        self.ranges = True
        self.length = True
        self.status = 200
        self.drops: list[int] = []
        self.asked: list[str | None] = []  # the Range header of each request
        self.paths: list[str] = []
        self.tokens: list[str | None] = []
        self.half_sent = threading.Event()
        self.stall: threading.Event | None = None
        files = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                files.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/dir/model.gguf?key=1"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.asked.append(wanted)
        self.paths.append(request.path)
        self.tokens.append(request.headers.get("Authorization"))
        start = 0
        if self.ranges and wanted and request.headers.get("If-Range") == self.etag:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])  # type: ignore[index]
        status = self.status if not start else 206 if start < len(self.content) else 416
        body = self.content[start:]
        request.send_response(status)
        if self.etag:
            request.send_header("ETag", self.etag)
        if start:
            place = f"{start}-{len(self.content) - 1}" if body else "*"
            request.send_header("Content-Range", f"bytes {place}/{len(self.content)}")
        if self.length:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # where a test kills the client
            self._send(request, body)

    def _send(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        if self.stall:
            request.wfile.write(body[: len(body) // 2])
            self.half_sent.set()
            self.stall.wait(100)
            body = body[len(body) // 2 :]
        request.wfile.write(body[: self.drops.pop(0)] if self.drops else body)

    def stall_from_now(self) -> None:
        """Send half of each answer, then wait for `go_on`."""
        self.stall = threading.Event()

    def go_on(self) -> None:
        """Send the rest, and whole answers from now on."""
        assert self.stall
        self.stall.set()
        self.stall = None

    def close(self) -> None:
        if self.stall:
            self.stall.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
