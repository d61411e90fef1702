"""The folder in which the processes of a machine share copies of remote shards: what lies there, and whose it is.

A file `KEY-STAMP-NAME.tar` is a copy: KEY is a hash of the address, STAMP one of what the place says of the file. What
else is known of an address lies beside it: `.KEY.note` says how the last fetch ended, `.KEY.part…` is what a fetch has
so far, and `.KEY.lock` is locked while one is going on. `.list-…` says what a process reads at present, and is locked
while that process lives. The system lets go of a lock when its holder dies, however it dies; so what lies there without
one is a leftover.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

# Seconds between two looks at a lock.
POLL = 0.05
_COPY = re.compile(r"([0-9a-f]{16})-[0-9a-f]{8}-.+\.tar")
_BESIDE = re.compile(r"\.([0-9a-f]{16})\.(note|part|lock).*")


class Copy(NamedTuple):
    """A whole copy; the oldest sorts first."""

    time: float
    size: int
    path: Path
    key: str


def copies_in(folder: Path) -> list[Copy]:
    """All whole copies."""
    found = []
    for path in folder.iterdir():
        match = _COPY.fullmatch(path.name)
        try:
            if match:
                status = path.stat()
                found.append(Copy(status.st_mtime, status.st_size, path, match[1]))
        except FileNotFoundError:
            # Another process has just removed it.
            continue
    return found


def acquire(lock: Path) -> int | None:
    """Lock the file `lock`, made if need be; None where another holds it. `release` ends it."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder before removes the file: the lock may be on one that is no longer there.
        if os.stat(lock).st_ino == os.fstat(handle).st_ino:
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def release(lock: Path, handle: int) -> None:
    lock.unlink(missing_ok=True)
    # Closing alone would leave the lock to workers that were forked meanwhile.
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def publish(folder: Path, keys: Sequence[str]) -> tuple[Path, int]:
    """Put `keys` into a list of this process; what `release` needs to withdraw it."""
    path = folder / f".list-{uuid.uuid4().hex}"
    while (handle := acquire(path)) is None:
        time.sleep(POLL)
    os.write(handle, "\n".join(keys).encode())
    return path, handle


def listed(folder: Path) -> set[str]:
    """The keys in the lists of all processes that live; the lists of others are removed."""
    keys: set[str] = set()
    for path in folder.glob(".list-*"):
        handle = acquire(path)
        if handle is not None:
            release(path, handle)
            continue
        try:
            keys.update(path.read_text().split())
        except FileNotFoundError:
            continue
    return keys


def sweep(folder: Path, kept: Collection[str]) -> None:
    """Remove what lies beside copies of fetches that nobody is at, and notes on what is neither a copy nor `kept`."""
    leftovers = set()
    for path in folder.iterdir():
        match = _BESIDE.fullmatch(path.name)
        if match and not (match[2] == "note" and match[1] in kept):
            leftovers.add(match[1])
    for key in leftovers:
        lock = folder / f".{key}.lock"
        handle = acquire(lock)
        if handle is None:
            continue
        # It may have been fetched since.
        held = any(folder.glob(f"{key}-*"))
        for path in folder.glob(f".{key}.*"):
            if path != lock and not (held and path.suffix == ".note" and ".part" not in path.name):
                path.unlink(missing_ok=True)
        release(lock, handle)
