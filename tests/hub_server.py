"""A stand-in for the hub: a dataset repository's files, with the answers that huggingface_hub asks for."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

COMMIT = "c" * 40


@contextmanager
def served_hub(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve the repositories OWNER/NAME in `folder`; yield the endpoint, and the paths of files that were fetched."""
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def _answer(self, code: int, body: bytes = b"", **headers: object) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": len(body), "X-Repo-Commit": COMMIT, **headers}.items():
                self.send_header(name.replace("_", "-"), str(value))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _entries(self, repository: str) -> list[dict[str, Any]]:
            files = sorted(path for path in (folder / repository).rglob("*") if path.is_file())
            return [
                {
                    "type": "file",
                    "path": path.relative_to(folder / repository).as_posix(),
                    "size": path.stat().st_size,
                    "oid": sha256(path.read_bytes()).hexdigest()[:40],
                }
                for path in files
            ]

        def do_POST(self) -> None:
            repository = re.match(r"/api/datasets/([^/]+/[^/]+)/paths-info/", self.path)[1]
            asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
            found = [entry for entry in self._entries(repository) if entry["path"] in asked]
            self._answer(200, json.dumps(found).encode(), Content_Type="application/json")

        def do_GET(self) -> None:
            if match := re.match(r"/datasets/([^/]+/[^/]+)/resolve/[^/]+/([^?]+)", self.path):
                self._file(folder / match[1] / match[2])
                return
            match = re.match(r"/api/datasets/([^/]+/[^/?]+)(/tree/|/revision/|$|\?)", self.path)
            if match is None or not (folder / match[1]).is_dir():
                self._answer(404, X_Error_Code="RepoNotFound")
                return
            content: Any = self._entries(match[1])
            if match[2] != "/tree/":
                names = [{"rfilename": entry["path"]} for entry in content]
                content = {"id": match[1], "sha": COMMIT, "siblings": names, "tags": [], "private": False}
            self._answer(200, json.dumps(content).encode(), Content_Type="application/json")

        do_HEAD = do_GET  # noqa: N815

        def _file(self, path: Path) -> None:
            if not path.is_file():
                self._answer(404, X_Error_Code="EntryNotFound")
                return
            data = path.read_bytes()
            etag = f'"{sha256(data).hexdigest()}"'
            if self.command == "HEAD":
                self._answer(200, data, ETag=etag)
                return
            fetched.append(f"{path.name} {self.headers.get('Range', 'whole')}")
            if match := re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                start, end = int(match[1]), int(match[2] or len(data) - 1)
                part = data[start : end + 1]
                self._answer(
                    206, part, ETag=etag, Content_Range=f"bytes {start}-{start + len(part) - 1}/{len(data)}"
                )
            else:
                self._answer(200, data, ETag=etag)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        server.server_close()
