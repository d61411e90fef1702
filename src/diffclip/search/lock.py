"""One at a time updates an index; who reads it is not kept waiting."""

from __future__ import annotations

import fcntl
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diffclip.errors import InputError
from diffclip.files import disk_errors
from diffclip.search.store import LOCK

# A process never stands in its own way with the system's lock, and closing the file once would end it.
_held: set[str] = set()
_turn = threading.Lock()


class BusyError(InputError):
    """Somebody else updates the index."""


@contextmanager
def updating(place: Path) -> Iterator[None]:
    """Keep others from updating the index in `place`, until the block or the process ends, however it does.

    The lock belongs to the process: data workers that outlive it for a moment do not hold it.

    Raises:
        BusyError: another process, or another index of this one, updates it.
        InputError: `place` cannot be written.
    """
    file = place / LOCK
    name = os.path.realpath(file)
    with _turn:
        if name in _held:
            raise _busy("this process", place)
        _held.add(name)
    try:
        with disk_errors(file):
            handle = file.open("a+", encoding="utf-8")
        with handle:
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.seek(0)
                raise _busy(handle.read().strip() or "another process", place) from None
            except OSError:  # a file system without locks: nothing is kept out, and nothing stops
                pass
            with disk_errors(file):
                handle.truncate(0)
                handle.write(f"process {os.getpid()} on {platform.node()}")
                handle.flush()
            yield
    finally:
        with _turn:
            _held.discard(name)


def _busy(holder: str, place: Path) -> BusyError:
    return BusyError(
        f"{holder} updates the index {place} already: wait for it, or search what is there with --no-update"
    )
