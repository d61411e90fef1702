"""An index's database opened, and made if there is none, by however many processes at once."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffclip.errors import InputError
from diffclip.search.database_errors import damaged

_FORMAT = 1
_PATIENCE = 60.0  # seconds that a transaction of another process may take
_PAUSE = 0.005  # seconds
# A row of vectors wider than a page would take a chain of them, and half of a small page would stay empty.
_PAGE = 16384

_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value BLOB);
CREATE TABLE state (last INTEGER, removals INTEGER);
CREATE TABLE files (
    id INTEGER PRIMARY KEY, path BLOB UNIQUE, size INTEGER, mtime INTEGER, fault TEXT
);
CREATE TABLE vectors (id INTEGER PRIMARY KEY, data BLOB);
INSERT INTO state VALUES (0, 0);
"""


def connect(file: Path) -> sqlite3.Connection:
    """A connection that any thread may use, with a write-ahead log and without transactions of Python's own.

    Raises:
        sqlite3.Error: the file is no database, cannot be written, or another process holds it for too long.
    """
    connection = sqlite3.connect(file, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA page_size = {_PAGE}")
        _log_ahead(connection)
        # a commit survives the process; a power cut may take the last ones along, and leaves the rest whole
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _log_ahead(connection: sqlite3.Connection) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # for this statement alone SQLite does not wait itself
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
        time.sleep(_PAUSE)


def identify(
    connection: sqlite3.Connection, place: Path, folder: Path, model: str, label: str, width: int
) -> str:
    """What tells this database from every other; its tables are made if there are none.

    Args:
        place: the folder where it lies, for the messages. See `Store` for the others.

    Raises:
        InputError: it is of another folder or model, or of something else.
        sqlite3.Error: it cannot be read or written.
    """
    wanted = {
        "format": _FORMAT,
        "folder": os.fsencode(folder),
        "model": model,
        "label": label,
        "width": width,
    }
    query = connection.execute
    made = "SELECT count(*) FROM sqlite_master"
    if not query(made).fetchone()[0]:
        with change(connection):
            if not query(made).fetchone()[0]:
                for statement in _TABLES.split(";"):
                    query(statement)
                about = {**wanted, "identity": secrets.token_hex(8)}
                connection.executemany("INSERT INTO about VALUES (?, ?)", about.items())
    found: dict[str, Any] = dict(query("SELECT name, value FROM about").fetchall())
    if not {*wanted, "identity"} <= found.keys():
        raise damaged(place, "it does not say what it is of")
    fault = None
    if found["format"] != _FORMAT:
        fault = "was made by another version of this program: remove it"
    elif found["folder"] != wanted["folder"]:
        fault = f"is the index of {os.fsdecode(found['folder'])}: choose another place for that of {folder}"
    elif found["model"] != model or found["width"] != width:
        fault = f"was made with another model ({found['label']}): choose another place"
    if fault:
        raise InputError(f"{place} {fault}")
    return str(found["identity"])


@contextmanager
def change(connection: sqlite3.Connection) -> Iterator[None]:
    """What is written inside is kept whole or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
