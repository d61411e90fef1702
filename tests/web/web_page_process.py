"""A client that sends the same requests as the page's own script, and the page as a real process."""

import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any


class Page:
    """A client of the page at `url`, with the requests of the page's own script."""

    def __init__(self, url: str) -> None:
        import httpx

        self.url = url
        # a long timeout: clients of a test wait in one queue, and the machine may be busy
        self.http = httpx.Client(base_url=url, timeout=300, trust_env=False)
        config = self.http.get("/config").json()
        self._names = {part["props"].get("elem_id"): part["id"] for part in config["components"]}
        self._events = {
            (target[0], target[1]): event["id"]
            for event in config["dependencies"]
            for target in event["targets"]
            if event["backend_fn"]
        }

    def upload(self, content: bytes, name: str = "image.png") -> str | None:
        """Return the server's path of the uploaded file, None if the server refuses it."""
        answer = self.http.post("/gradio_api/upload", files={"files": (name, content)})
        return answer.json()[0] if answer.status_code == 200 else None

    def look(self, path: str | None, texts: str = "a\nb", scene: int | None = None) -> list[Any]:
        return self.ask("dc-look", [_file(path), scene, texts, "relevance", 60, 0, 0, False])

    def ask(self, button: str, values: list[Any]) -> list[Any]:
        """Return the values that a click on `button` changes on the page; [status, text] if it is refused."""
        session = uuid.uuid4().hex
        body = {
            "data": values,
            "fn_index": self._events[self._names[button], "click"],
            "session_hash": session,
        }
        joined = self.http.post("/gradio_api/queue/join", json=body)
        if joined.status_code != 200:
            return [joined.status_code, joined.text]
        with self.http.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as stream:
            for line in stream.iter_lines():
                message = json.loads(line[5:]) if line.startswith("data:") else {}
                if message.get("msg") == "process_completed":
                    return message["output"].get("data") or [message["success"], message["output"]]
        raise AssertionError("the server ended its answer without a result")


def _file(path: str | None) -> dict[str, Any] | None:
    return None if path is None else {"path": path, "meta": {"_type": "gradio.FileData"}}


def start(*arguments: object, cache: Path) -> subprocess.Popen[bytes]:
    """Start `diffclip explore` as a process that writes its temporary files and `log` to `cache`."""
    command = [sys.executable, "-m", "diffclip.cli", "explore", "--no-browser", "--port", "0"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", "TMPDIR": str(cache)}
    with (cache / "log").open("wb") as log:
        return subprocess.Popen([*command, *map(str, arguments)], stderr=log, env=environment)


def wait_for_address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return the address that the process prints when it is ready."""
    end = time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        match = re.search(r"the page is at (http://\S+)", log.read_text())
        if match:
            return match[1]
        time.sleep(0.1)
    process.kill()
    raise AssertionError(f"no page: {log.read_text()}")
