"""One at a time updates an index, and one writes its cache; who reads them is not kept waiting."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diffclip.errors import InputError
from diffclip.files import lock_file
from diffclip.search.store import COMPACT_LOCK, LOCK

# A process never stands in its own way with the system's lock, and closing the file once would end it.
_held: set[str] = set()
_turn = threading.Lock()


class BusyError(InputError):
    """Somebody else, the `holder`, works on the index."""

    def __init__(self, holder: str, place: Path) -> None:
        self.holder = holder
        super().__init__(
            f"{holder} updates the index {place} already: wait for it, or search what is there with --no-update"
        )


@contextmanager
def updating(place: Path) -> Iterator[None]:
    """Keep others from updating the index in `place`, until the block or the process ends, however it does.

    Raises:
        BusyError: another process, or another index of this one, updates it.
        InputError: `place` cannot be written.
    """
    with _alone(place, LOCK):
        yield


@contextmanager
def writing_compact(place: Path) -> Iterator[None]:
    """As `updating`, for the vectors kept for FAISS, so that who only searches keeps nobody from updating."""
    with _alone(place, COMPACT_LOCK):
        yield


@contextmanager
def _alone(place: Path, lock: str) -> Iterator[None]:
    file = place / lock
    name = os.path.realpath(file)
    with _turn:
        if name in _held:
            raise BusyError("this process", place)
        _held.add(name)
    try:
        handle = lock_file(file)
        if isinstance(handle, str):
            raise BusyError(handle, place)
        with handle:
            yield
    finally:
        with _turn:
            _held.discard(name)
