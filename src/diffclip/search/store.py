"""What an index knows, in an SQLite database: files, what came of each, and the vectors of those that are pictures.

Every change is one transaction in a write-ahead log: a process that is killed loses what it has not committed, and
nothing else. A file that is embedded gets a new id, which is never given again.

Shapes: D the joint width. Vectors are float16.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diffclip.data.samples import Fault
from diffclip.errors import InputError
from diffclip.files import disk_errors
from diffclip.search.database_errors import damaged, told
from diffclip.search.opening import change, connect, identify
from diffclip.search.scan import Entry, Unreadable

DATABASE, LOCK, COMPACT, COMPACT_LOCK = "index.sqlite", "lock", "compact", "compact.lock"
# SQLite writes a journal until a new database has its write-ahead log
_OWN = {DATABASE, *(f"{DATABASE}-{kind}" for kind in ("journal", "wal", "shm")), LOCK, COMPACT, COMPACT_LOCK}
_CHUNK = 4096

_SEEN = """
DROP TABLE IF EXISTS temp.seen;
DROP TABLE IF EXISTS temp.pending;
CREATE TEMP TABLE seen (path BLOB PRIMARY KEY, size INTEGER, mtime INTEGER) WITHOUT ROWID;
CREATE TEMP TABLE pending (number INTEGER PRIMARY KEY, path BLOB, size INTEGER, mtime INTEGER, known INTEGER);
"""
_PENDING = """
INSERT INTO temp.pending (path, size, mtime, known)
SELECT path, seen.size, seen.mtime, files.id IS NOT NULL FROM temp.seen LEFT JOIN main.files USING (path)
WHERE files.id IS NULL OR files.size <> seen.size OR files.mtime <> seen.mtime ORDER BY path
"""
_GONE = "SELECT id FROM main.files WHERE NOT EXISTS (SELECT 1 FROM temp.seen WHERE seen.path = files.path)"


@dataclass(frozen=True)
class Pending(Entry):
    """A file to be embedded; `known`: an earlier state of it is in the index."""

    known: bool


@dataclass(frozen=True)
class Outcome:
    """What came of a file: its vector float16 [D], or a reason. One that may `pass` is tried again the next time."""

    file: Pending
    vector: NDArray[np.float16] | None = None
    reason: str = ""
    passing: bool = False


@dataclass(frozen=True)
class State:
    """Two states of one database hold the same vectors if they are equal.

    `last` is the highest id ever given, `removals` counts vectors that were taken out.
    """

    identity: str
    last: int
    removals: int


class Store:
    """The database of the index in the folder `place`, made if there is none.

    It may be used from any thread, by one at a time.

    Raises:
        InputError: from every method, if the database is damaged, cannot be written, or the disk is full.
    """

    def __init__(self, place: Path, folder: Path, model: str, label: str, width: int) -> None:
        """
        Args:
            place: where the index lies.
            folder: real path of the pictures' folder.
            model: what tells the model and its preparation of pictures from others.
            label: the model for people.
            width: D.

        Raises:
            InputError: `place` holds something else, or the index of another folder or model.
        """
        self.place, self.width = place, width
        with disk_errors(place):
            place.mkdir(parents=True, exist_ok=True)
            if not {file.name for file in place.iterdir()} <= _OWN:
                raise InputError(f"{place} holds other files: choose a new or an empty folder for the index")
        with told(self.place):
            self._connection = connect(place / DATABASE)
            try:
                self.identity = identify(self._connection, place, folder, model, label, width)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        with told(self.place):
            self._connection.close()

    def __len__(self) -> int:
        """The number of vectors."""
        with told(self.place):
            count = self._connection.execute("SELECT count(*) FROM files WHERE fault IS NULL").fetchone()[0]
        return int(count)

    def state(self) -> State:
        with told(self.place):
            last, removals = self._connection.execute("SELECT last, removals FROM state").fetchone()
        return State(self.identity, last, removals)

    def faults(self) -> list[Fault]:
        """The files that are no whole pictures, and why, by path."""
        with told(self.place):
            query = "SELECT path, fault FROM files WHERE fault IS NOT NULL ORDER BY path"
            rows = self._connection.execute(query).fetchall()
        return [Fault(os.fsdecode(path), reason) for path, reason in rows]

    def paths(self, ids: Sequence[int]) -> dict[int, bytes]:
        """The paths, within the folder, of those of `ids` that are still there."""
        with told(self.place):
            query = "SELECT path FROM files WHERE id = ?"
            found = {number: self._connection.execute(query, (number,)).fetchone() for number in ids}
        return {number: row[0] for number, row in found.items() if row}

    # -- updating, by one process at a time

    def note(self, entries: Iterable[Entry]) -> Iterator[int]:
        """Take down what the folder holds now; gives the numbers of entries taken, some at a time."""
        with told(self.place):
            self._connection.executescript(_SEEN)
        entries = iter(entries)
        while chunk := list(islice(entries, _CHUNK)):
            rows = [(entry.path, entry.size, entry.mtime) for entry in chunk]
            with told(self.place), change(self._connection):
                self._connection.executemany("INSERT OR REPLACE INTO temp.seen VALUES (?, ?, ?)", rows)
            yield len(rows)

    def compare(self, unreadable: Sequence[Unreadable]) -> tuple[int, int]:
        """Forget the files that are gone; what lies below `unreadable` stays as it was.

        Returns:
            The numbers of files that are pending, and of those that are gone.
        """
        query = self._connection.execute
        with told(self.place), change(self._connection):
            for one in unreadable:
                span = (one.path, one.path + b"/", one.path + b"0")  # "0" comes after "/"
                query(
                    "INSERT OR IGNORE INTO temp.seen SELECT path, size, mtime FROM main.files "
                    "WHERE path = ? OR (path > ? AND path < ?)",
                    span,
                )
            query(_PENDING)
            pending = query("SELECT count(*) FROM temp.pending").fetchone()[0]
            out = query(f"DELETE FROM vectors WHERE id IN ({_GONE})").rowcount
            gone = query(f"DELETE FROM files WHERE id IN ({_GONE})").rowcount
            query("UPDATE state SET removals = removals + ?", (out,))
            query("DROP TABLE temp.seen")
        return pending, gone

    def pending(self, size: int) -> Iterator[list[Pending]]:
        """What is to be embedded, up to `size` files at a time, by path. Files may be `put` meanwhile."""
        last = 0
        while True:
            with told(self.place):
                rows = self._connection.execute(
                    "SELECT * FROM temp.pending WHERE number > ? ORDER BY number LIMIT ?", (last, size)
                ).fetchall()
            if not rows:
                return
            last = rows[-1][0]
            yield [Pending(path, length, mtime, bool(known)) for _, path, length, mtime, known in rows]

    def put(self, outcomes: Iterable[Outcome]) -> None:
        """Keep what came of some files, all or none, in the place of what was known of them."""
        query = self._connection.execute
        with told(self.place), change(self._connection):
            last = query("SELECT last FROM state").fetchone()[0]
            removed = 0
            for one in outcomes:
                last += 1
                path = one.file.path
                if one.file.known:
                    by_path = "WHERE id = (SELECT id FROM files WHERE path = ?)"
                    removed += query(f"DELETE FROM vectors {by_path}", (path,)).rowcount
                    query("DELETE FROM files WHERE path = ?", (path,))
                if one.vector is not None:
                    query("INSERT INTO vectors VALUES (?, ?)", (last, one.vector.tobytes()))
                elif one.passing:
                    continue
                reason = one.reason if one.vector is None else None
                row = (last, path, one.file.size, one.file.mtime, reason)
                query("INSERT INTO files VALUES (?, ?, ?, ?, ?)", row)
            query("UPDATE state SET last = ?, removals = removals + ?", (last, removed))

    # -- vectors

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read inside is of one moment, whatever other processes do."""
        with told(self.place):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("COMMIT")

    def ids(self) -> NDArray[np.int64]:
        """The ids of all vectors, in order."""
        with told(self.place):
            rows = self._connection.execute("SELECT id FROM files WHERE fault IS NULL ORDER BY id")
            return np.fromiter((row[0] for row in rows), dtype=np.int64)

    def vectors(self, after: int, size: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float16]]]:
        """Ids int64 [n] above `after`, in order, and their vectors [n, D], up to `size` at a time."""
        while True:
            with told(self.place):
                rows = self._connection.execute(
                    "SELECT id, data FROM vectors WHERE id > ? ORDER BY id LIMIT ?", (after, size)
                ).fetchall()
            if not rows:
                return
            if any(not isinstance(data, bytes) or len(data) != 2 * self.width for _, data in rows):
                raise damaged(self.place, "a vector has another length")
            after = rows[-1][0]
            data = np.frombuffer(b"".join(data for _, data in rows), dtype=np.float16)
            yield np.array([number for number, _ in rows], dtype=np.int64), data.reshape(-1, self.width)
