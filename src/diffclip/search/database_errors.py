"""What SQLite cannot do, in a line that says what to do about it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diffclip.errors import InputError


@contextmanager
def told(place: Path) -> Iterator[None]:
    """Turn SQLite's errors into `InputError`, for the index in the folder `place`."""
    try:
        yield
    except sqlite3.ProgrammingError:  # ours: a closed database, say
        raise
    except sqlite3.Error as error:
        # the low byte is the kind, the rest is detail
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            line = f"no space left on device for the index {place}: free some space or choose another place"
        elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            line = f"cannot write the index {place} ({error}): choose another place"
        elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            line = f"another program holds the index {place}: end it, or choose another place"
        elif code == sqlite3.SQLITE_IOERR:
            line = f"cannot read or write the index {place} ({error}): choose another place"
        else:
            raise damaged(place, str(error)) from error
        raise InputError(line) from error


def damaged(place: Path, reason: str) -> InputError:
    """The error for an index that cannot be what this package has written."""
    return InputError(f"the index {place} is damaged ({reason}): remove that folder, it is made anew")
