"""The vectors of an index in memory, searched by FAISS, and a file of them that saves reading the database.

They are kept as float16, which is how the database has them: 2·D + 8 bytes each, in parts of a fixed size, so that
adding to a million never copies them all. Every vector is compared (no clustering, nothing to train): results are those
of an exact search but for the rounding to float16.

Shapes: D the joint width.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import IO, Any

import faiss
import numpy as np
from numpy.typing import NDArray

from diffclip.errors import InputError
from diffclip.files import write_atomically
from diffclip.search.lock import writing_compact
from diffclip.search.store import COMPACT, State, Store

PART = 16384
"""Vectors of a part."""
FILE = "vectors.faiss"
_CHUNK = 8192
_REWRITE = 0.05  # the share of vectors that came or went since the file was written
_RECORD = struct.Struct("<QI")  # length of what follows, and its checksum


class CompactVectors:
    """The vectors of a `Store`, as of its last `refresh`."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._parts: list[Any] = []
        self._state = State("", 0, 0)
        self._since_written: int | None = None  # None: there is no file of use

    def __len__(self) -> int:
        return sum(part.ntotal for part in self._parts)

    def refresh(self, store: Store) -> None:
        """Take in what the store has got and lost; the first time, from the file if there is a whole one.

        Raises:
            InputError: the store cannot be read.
        """
        try:
            changed = self._take_in(store)
        except BaseException:
            # half of it would be taken in twice
            self._parts, self._state = [], State("", 0, 0)
            raise
        if self._since_written is not None:
            self._since_written += changed
        if self._since_written is None or self._since_written > _REWRITE * len(self):
            self._write(store)

    def _take_in(self, store: Store) -> int:
        """How many vectors came and went, besides those from the file."""
        if self._state.identity != store.identity:
            # before the snapshot, which another process that writes the file could else be ahead of
            self._state = self._read(store)
        with store.snapshot():
            state = store.state()
            changed = self._remove(store) if state.removals != self._state.removals else 0
            for ids, data in store.vectors(self._state.last, _CHUNK):
                self._add(ids, data)
                changed += len(ids)
            self._state = state
        return changed

    def search(self, query: NDArray[np.float32], top: int) -> list[tuple[int, float]]:
        """The ids nearest to a unit vector [D], at most `top`, with their cosines, best first."""
        found: list[tuple[float, int]] = []
        with _one_thread():
            for part in self._parts:
                scores, ids = part.search(query[None], min(top, part.ntotal))
                found += zip(scores[0].tolist(), ids[0].tolist(), strict=True)
        found.sort(key=lambda one: (-one[0], one[1]))
        return [(number, score) for score, number in found[:top]]

    def _add(self, ids: NDArray[np.int64], data: NDArray[np.float16]) -> None:
        while len(ids):
            if not self._parts or self._parts[-1].ntotal >= PART:
                self._parts.append(_part(self.width))
            room = PART - self._parts[-1].ntotal
            # an entry of a float16 quantiser is the number itself
            codes = np.ascontiguousarray(data[:room]).view(np.uint8)
            self._parts[-1].add_sa_codes(codes, ids[:room])
            ids, data = ids[room:], data[room:]

    def _remove(self, store: Store) -> int:
        live = store.ids()
        removed = 0
        for part in self._parts:
            ids = faiss.vector_to_array(part.id_map)
            gone = ids[~np.isin(ids, live, assume_unique=True)]
            removed += part.remove_ids(gone) if len(gone) else 0
        self._parts = [part for part in self._parts if part.ntotal]
        return removed

    def _read(self, store: Store) -> State:
        """What the file holds, and the state that it is of; nothing if it is damaged or of another database."""
        empty = State(store.identity, 0, 0)
        try:
            with (store.place / COMPACT / FILE).open("rb") as handle:
                about = json.loads(_read_record(handle))
                state = State(**about["state"])
                if state.identity != store.identity or about["width"] != self.width:
                    return empty
                parts = [_read_part(handle) for _ in range(about["parts"])]
        # FAISS and JSON raise almost anything for damaged bytes, and the database is the authority
        except Exception:
            return empty
        self._parts, self._since_written = parts, 0
        return state

    def _write(self, store: Store) -> None:
        folder = store.place / COMPACT
        # A cache that cannot be written, now or by us, costs the time again, nothing else.
        with suppress(InputError, OSError), writing_compact(store.place):
            for left in folder.glob(".*.tmp"):
                left.unlink(missing_ok=True)
            with write_atomically(folder / FILE) as temporary, temporary.open("wb") as handle:
                about = {"state": asdict(self._state), "width": self.width, "parts": len(self._parts)}
                _write_record(handle, json.dumps(about).encode())
                for part in self._parts:
                    _write_record(handle, faiss.serialize_index(part).tobytes())
            self._since_written = 0


def _write_record(handle: IO[bytes], data: bytes) -> None:
    handle.write(_RECORD.pack(len(data), zlib.crc32(data)))
    handle.write(data)


def _read_record(handle: IO[bytes]) -> bytes:
    """The next record of a file.

    Raises:
        ValueError: it is damaged.
        struct.error: there is none.
    """
    length, crc = _RECORD.unpack(handle.read(_RECORD.size))
    if length > os.fstat(handle.fileno()).st_size:
        raise ValueError("a record is longer than the file")
    data = handle.read(length)
    # FAISS trusts what it reads: damaged bytes could make it ask for any amount of memory
    if len(data) != length or zlib.crc32(data) != crc:
        raise ValueError("a record is damaged")
    return data


def _read_part(handle: IO[bytes]) -> Any:
    return faiss.deserialize_index(np.frombuffer(_read_record(handle), dtype=np.uint8))


@contextmanager
def _one_thread() -> Iterator[None]:
    """FAISS shares out queries, not vectors: with one, its threads are only woken, which takes longer than the search
    where other programs use the cores."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


def _part(width: int) -> Any:
    codes = faiss.IndexScalarQuantizer(width, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    return faiss.IndexIDMap(codes)
