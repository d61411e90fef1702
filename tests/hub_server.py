"""A stand-in for the Hugging Face hub: as much of it as creating, committing to and reading a repository takes."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0" * 39 + "1"


class _Hub(BaseHTTPRequestHandler):
    files: dict[str, bytes]
    asked: list[str]

    def _answer(self, body: bytes, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, content: Any, code: int = 200) -> None:
        self._answer(json.dumps(content).encode(), code, Content_Type="application/json")

    def do_POST(self) -> None:
        self.asked.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path.endswith("/create"):
            self._json({"url": f"http://{self.headers['Host']}/me/mine", "id": "me/mine"})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            self._json(
                {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
            )
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._json({"commitUrl": f"http://{self.headers['Host']}/me/mine/commit/1", "commitOid": COMMIT})
        else:
            self._json({"errors": [], "warnings": []})

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        if file := re.fullmatch(r"/me/mine/resolve/[^/]+/(.+)", self.path):
            if file[1] in self.files:
                self._answer(self.files[file[1]], ETag=f'"{file[1]}"', X_Repo_Commit=COMMIT)
            else:
                self._answer(b"", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
        elif "/me/mine/tree/" in self.path:
            sizes = {name: len(content) for name, content in self.files.items()}
            self._json([{"type": "file", "path": n, "size": s, "oid": n} for n, s in sizes.items()])
        elif self.path.startswith("/api/models/me/mine"):
            siblings = [{"rfilename": name} for name in self.files]
            self._json({"id": "me/mine", "sha": COMMIT, "siblings": siblings})
        else:
            self._answer(b"{}", 404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving() -> Iterator[tuple[str, dict[str, bytes], list[str]]]:
    """The address of a hub with the repository me/mine, its files, and what it is asked."""
    files: dict[str, bytes] = {}
    asked: list[str] = []
    handler = type("Handler", (_Hub,), {"files": files, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", files, asked
    finally:
        server.shutdown()
        server.server_close()
