"""Files that one process makes and others wait for and use, in a folder of their own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from diffclip.files import disk_errors, lock_file

Found = TypeVar("Found")

# Seconds between two looks at the lock, and of silence while waiting.
_POLL, _SILENT = 0.1, 3.0
# Seconds after which what nobody writes to is left by a process that was killed.
_LEFT = 600.0


def made_once(folder: Path, find: Callable[[], Found | None], make: Callable[[], Found]) -> Found:
    """What `find` finds in `folder`, or else what `make` gives after it has put it there; one process at a time makes.

    Where a file system has no locks several may make, so what `make` writes must replace its like.

    Raises:
        InputError: the folder cannot be written.
    """
    found = find()
    if found is None:
        with _turn(folder):
            found = find()
            if found is None:
                _sweep(folder)
                found = make()
    return found


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    since, said = time.monotonic(), False
    while isinstance(held := lock_file(folder / "lock"), str):
        if not said and time.monotonic() - since > _SILENT:
            said = True
            print(
                f"diffclip: waiting for pictures that {held} prepares in {folder}",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(_POLL)
    with held:
        yield


def _sweep(folder: Path) -> None:
    """Remove what a process that was killed had begun to write."""
    for file in folder.glob(".*.tmp"):
        with disk_errors(file):
            if time.time() - file.stat().st_mtime > _LEFT:
                file.unlink(missing_ok=True)
