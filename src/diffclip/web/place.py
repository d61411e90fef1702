"""The temporary folder of the uploads, removed at the end, or by the next start where there was none."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "diffclip-explore-"
_YOUNG = 60.0
"""Seconds in which a folder's owner may still be about to lock it."""


@contextmanager
def uploads_folder() -> Iterator[Path]:
    """A new folder, locked while it is used; those of pages that ended without a word are removed first."""
    if sys.platform == "win32":
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as place:
            yield Path(place).resolve()
        return
    _remove_left()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as place:
        handle = _lock(Path(place))
        try:
            yield Path(place).resolve()
        finally:
            if handle is not None:
                os.close(handle)


def _remove_left() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            about = path.lstat()
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < _YOUNG:
                continue
            handle = _lock(path)
            if handle is not None:
                try:
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(handle)


def _lock(path: Path) -> int | None:
    """An open handle of the folder, locked; None if another process has it, or it is no folder."""
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
