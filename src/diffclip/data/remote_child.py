"""The child process that waits for the network: started for one question, watched, and ended when it stalls.

Only a process can be ended at any time: a thread stays where a connection or a name server leaves it hanging, and
fsspec's event loop with it. A child also keeps the copying off the interpreter that trains, and knows nothing of the
threads and locks that a data worker was forked from. Starting it takes a fifth of a second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from diffclip.data.transfer import attempt

# Seconds before the second, third and last attempt.
PAUSES = (0.5, 2.0, 8.0)
_CODE = (
    "import json, sys; request = json.loads(sys.stdin.readline()); sys.path[:] = request.pop('path'); "
    "from diffclip.data.transfer import serve; serve(**request)"
)
# A worker that is forked while a child is being started would hold the child's pipes, and each would wait for
# the other's end of them.
_STARTING = threading.Lock()
os.register_at_fork(
    before=_STARTING.acquire, after_in_parent=_STARTING.release, after_in_child=_STARTING.release
)


class StoppedError(Exception):
    """What was going on is no longer wanted."""


def never() -> bool:
    return False


def ask(
    operation: str,
    items: Sequence[Mapping[str, Any]],
    stall: float,
    watched: tuple[Path, ...] = (),
    stopped: Callable[[], bool] = never,
) -> list[Any]:
    """Do `operation` of `diffclip.data.transfer` for each of `items`.

    What is lost on the way is tried again a few times, from the start.

    Args:
        stall: seconds after which a child that neither answers nor changes one of `watched` is ended.
        watched: files that grow while it is at work.
        stopped: asked all the time; once it is true, `StoppedError` is raised.

    Returns:
        For each item {"value": …}, or {"kind": …, "reason": …} of what went wrong.
    """
    answers: list[dict[str, Any]] = [{"kind": "lost"}] * len(items)
    for pause in (0.0, *PAUSES):
        waiting = [number for number, answer in enumerate(answers) if answer.get("kind") == "lost"]
        if not waiting:
            break
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            if stopped():
                raise StoppedError
            time.sleep(min(0.1, left))
        for file in watched:
            file.unlink(missing_ok=True)
        got = _attempt(operation, [items[number] for number in waiting], stall, watched, stopped)
        for number, answer in zip(waiting, got, strict=True):
            answers[number] = answer
    return answers


def marks_of(files: Iterable[Path]) -> list[tuple[int, ...]]:
    """What differs once anything has happened to one of `files`."""
    marks: list[tuple[int, ...]] = []
    for file in files:
        try:
            status = file.stat()
            marks.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            marks.append(())
    return marks


def _attempt(
    operation: str,
    items: list[Mapping[str, Any]],
    stall: float,
    watched: tuple[Path, ...],
    stopped: Callable[[], bool],
) -> list[dict[str, Any]]:
    # fsspec's memory is that of a process.
    if all(item["url"].startswith("memory:") for item in items):
        return [attempt(operation, item) for item in items]
    request = {"path": sys.path, "operation": operation, "items": items, "parent": os.getpid()}
    command = [sys.executable, "-P", "-c", _CODE]
    with _STARTING:
        # In a session of its own the child can be ended with all that it has started.
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    try:
        said, why = _listen(child, f"{json.dumps(request)}\n".encode(), stall, watched, stopped)
    finally:
        _end(child)
    answers = [why] * len(items)
    for line in said.split(b"\n")[:-1]:
        number, answer = json.loads(line)
        answers[number] = answer
    return answers


def _listen(
    child: subprocess.Popen[bytes],
    request: bytes,
    stall: float,
    watched: tuple[Path, ...],
    stopped: Callable[[], bool],
) -> tuple[bytes, dict[str, Any]]:
    """What `child` says until it ends or stalls, and the answer to what it leaves open."""
    send: bytes | None = request
    seen, since = None, time.monotonic()
    while True:
        try:
            said, complaints = child.communicate(send, timeout=min(0.1, stall / 10))
            lines = complaints.decode(errors="replace").strip().splitlines()
            return said, {"kind": "lost", "reason": lines[-1] if lines else f"code {child.returncode}"}
        except subprocess.TimeoutExpired as waiting:
            send, said = None, waiting.output or b""
        mark = (len(said), marks_of(watched))
        if mark != seen:
            seen, since = mark, time.monotonic()
        elif time.monotonic() - since >= stall:
            return said, {"kind": "stalled", "reason": ""}
        if stopped():
            raise StoppedError


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    # One that the kernel holds in a read from a dead mount does not even end by SIGKILL.
    with suppress(subprocess.TimeoutExpired):
        child.wait(5)
