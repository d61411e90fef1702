"""A web server of its own for tests of remote shards, which can misbehave in the ways that real ones do."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from diffclip.data import remote_child


class ShardServer(ThreadingHTTPServer):
    """Serves `files` by path; `faults` says how requests for a path go wrong.

    A fault is a status, or "silent" (takes the request, sends nothing), "half" (sends half, then nothing more),
    "cut" (sends half, then closes), "reset" (closes the connection at once). A list of faults is used up, one a GET.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, Any] = {}
        self.requests: list[tuple[str, str]] = []
        self.arrived = threading.Semaphore(0)
        self.going_on = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def gets(self, path: str) -> int:
        return self.requests.count(("GET", path))


class _Handler(BaseHTTPRequestHandler):
    server: ShardServer

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def _serve(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append((self.command, path))
        self.server.arrived.release()
        fault = self.server.faults.get(path)
        if isinstance(fault, list):
            fault = (fault.pop(0) if body else fault[0]) if fault else None
        if fault == "silent":
            self.server.going_on.wait()
        elif fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif isinstance(fault, int):
            self.send_error(fault)
        elif path.endswith("/"):
            self._send(self._page(path), body, None)
        elif path not in self.server.files:
            self.send_error(404)
        else:
            self._send(self.server.files[path], body, fault)

    def _page(self, folder: str) -> bytes:
        names = [path.removeprefix(folder) for path in self.server.files if path.startswith(folder)]
        return "".join(f'<a href="{name}">{name}</a>\n' for name in ["?C=N;O=D", "../", *names]).encode()

    def _send(self, content: bytes, body: bool, fault: str | None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", hashlib.md5(content).hexdigest())
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/x-tar")
        self.end_headers()
        if not body:
            return
        self.wfile.write(content[: len(content) // 2] if fault else content)
        if fault == "half":
            self.wfile.flush()
            self.server.going_on.wait()

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ValueError):
            self.close_connection = True

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True

    def log_message(self, *words: Any) -> None:
        return


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardServer]:
    """A running server, in a world without long pauses between attempts and without a proxy."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(remote_child, "PAUSES", (0.01, 0.02, 0.03))
    server = ShardServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.going_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
