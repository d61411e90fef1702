"""The index of a tar shard: its samples and the positions of their members, so that a member is read directly.

The key of a member is its path up to the first dot of the base name, as in WebDataset; the ending is the rest, in lower
case. Members with the same key are a sample, wherever they are in the tar. One scan of the headers gives the index,
`diffclip-index/NAME.index` beside the shard, or a file in the user's cache folder. It holds a line of JSON (`Header`);
then, in binary, a row per sample (key, the number of its `Header.shapes`, and its first member), and for each member
its position in blocks of 512 bytes and its size. (Three NumPy files in one took twice as long to read.)
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import sys
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclip.data.members import Entry, Position, group_members
from diffclip.data.workers import map_processes
from diffclip.errors import InputError
from diffclip.files import cache_folder, cores, write_atomically

INDEX_FOLDER = "diffclip-index"
BLOCK = 512
# Limit for the zeros after the last member: GNU tar pads to 10 KiB, or to the size that `-b` sets.
_PADDING = 1 << 20
_NO_TAR = "is not a tar: make shards of images and captions with diffclip data make-shards"
# How a compressed file begins, and the program that unpacks it.
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
_FORMAT = 8


@lru_cache
def _row_type(longest: int) -> np.dtype[np.void]:
    """Return the type of the rows of samples whose longest key has this many bytes."""
    return np.dtype([("key", f"S{longest}"), ("shape", "<u4"), ("first", "<u4")])


@dataclass(frozen=True)
class Header:
    """The summary of a shard.

    Attributes:
        stamp: size and time of the shard (remote: values of its server); the same stamp counts as the same content.
        shapes: for each set of members of a sample their endings, sorted, without empty members.
        counts: the number of samples of each shape.
        faults: why parts of the shard are skipped.
        notes: oddities of the shard, of which nothing is skipped.
    """

    stamp: str
    shapes: list[list[str]]
    counts: list[int]
    faults: list[str]
    notes: list[str] = field(default_factory=list)


class Index(NamedTuple):
    """The index of the shard at `path`: its header, a row per sample, and block and size of each member [members, 2].
    The tables are empty if only the header was read."""

    path: Path
    header: Header
    rows: NDArray[np.void] = np.zeros(0, _row_type(1))
    positions: NDArray[np.uint32] = np.zeros((0, 2), np.uint32)


def stamp(path: Path) -> str:
    """Return the size and time of a file, or "" if it cannot be accessed."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def scan(path: Path) -> Index:
    """Read the headers of the tar at `path`, seeking over the contents."""
    mark, entries, unread, fault = stamp(path), list[Entry](), list[str](), None
    length, broken_at = 0, None
    try:
        with path.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            broken_at = _read_headers(file, length, entries, unread)
    except InputError as error:
        fault = str(error)
    except OSError as error:
        entries, unread, fault = [], [], f"cannot be read ({error.strerror or error})"
    samples, repeated = group_members(entries)
    if broken_at is not None:
        kept = f"{len(samples)} sample{'s' * (len(samples) != 1)} before it kept"
        fault = f"is cut short or broken at byte {broken_at} of {length}, {kept}"
    elif entries and not samples:
        fault = f"has no file that is named KEY.ENDING, the first is {entries[0][0]!r}"
    notes = [f"holds {len(repeated)} keys more than once, the first: {repeated[0]!r}"] if repeated else []
    if unread:
        which = f"{len(unread)} links or sparse files, which are not read"
        advice = "pack the files with tar --dereference --hard-dereference"
        notes.append(f"holds {which}, the first: {unread[0]!r}: {advice}")
    shapes: dict[tuple[str, ...], int] = {}
    table, positions = [], list[Position]()
    for key, members in samples:
        endings = tuple(sorted(ending for ending, (_, size) in members.items() if size))
        shape = shapes.setdefault(endings, len(shapes))
        table.append((key.encode("utf-8", "surrogateescape"), shape, len(positions)))
        positions += [members[ending] for ending in endings]
    rows = np.array(table, _row_type(max([1, *(len(key) for key, _, _ in table)])))
    counts = np.bincount(rows["shape"], minlength=len(shapes)).tolist()
    header = Header(mark, list(map(list, shapes)), counts, [fault] if fault else [], notes)
    return Index(path, header, rows, np.array(positions, np.uint32).reshape(-1, 2))


def _read_headers(file: IO[bytes], length: int, entries: list[Entry], unread: list[str]) -> int | None:
    """Read the headers of a tar of `length` bytes up to the first broken one; return its position or None. Add files to
    `entries`, and the names of links and sparse files to `unread`. Raise `InputError` for a file of another kind."""
    if not length:
        raise InputError("is empty (0 bytes)")
    try:
        tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115
    except tarfile.ReadError:
        file.seek(0)
        magic = file.read(5)
        programs = (program for start, program in _COMPRESSED.items() if magic.startswith(start))
        reason = next((f"is compressed: unpack it with {program}" for program in programs), _NO_TAR)
        raise InputError(reason) from None
    whole = False
    # tarfile raises these errors for a damaged header
    with suppress(tarfile.TarError, ValueError, OverflowError, IndexError, MemoryError):
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep every header in memory
            # a damaged size may be negative or huge, and then the reader may not advance
            after = tar.offset if member.issparse() else member.offset_data + member.size
            if member.size < 0 or tar.offset <= member.offset or after > length:
                break
            # some writers on Windows use backslashes
            name = posixpath.normpath(member.name.replace("\\", "/"))
            if member.issparse() or member.issym() or member.islnk():
                unread.append(name)
            elif member.isreg() and member.size < 2**32:
                entries.append((name, (member.offset_data // BLOCK, member.size)))
        else:
            whole = True
    position = file.seek(min(tar.offset, length))
    end = file.read(_PADDING + 1)
    is_end = BLOCK <= len(end) <= _PADDING and not end.strip(b"\0")
    return None if whole and is_end else position


def write_index(file: Path, index: Index) -> None:
    """Write an index, or skip it if it cannot be written."""
    with suppress(InputError, OSError), write_atomically(file) as temporary:
        sizes = [len(index.rows), len(index.positions), index.rows.dtype["key"].itemsize]
        line = json.dumps({"format": _FORMAT, "sizes": sizes, **asdict(index.header)}).encode() + b"\n"
        temporary.write_bytes(line + index.rows.tobytes() + index.positions.astype("<u4").tobytes())


def read_index(path: Path, file: Path, mark: str | None, tables: bool = True) -> Index | None:
    """Read the index of the shard at `path` from `file`; with `tables=False`, only its header. Return None if it is
    missing or damaged, or if its stamp is not `mark` (None: any stamp)."""
    try:
        with file.open("rb") as handle:
            fields = json.loads(handle.readline())
            samples, members, longest = fields.pop("sizes")
            if fields.pop("format") != _FORMAT or mark not in (None, fields["stamp"]):
                return None
            header = Header(**fields)
            if not tables:
                return Index(path, header)
            dtype, content = _row_type(longest), handle.read()
            rows = np.frombuffer(content, dtype, samples)
            positions = np.frombuffer(content, "<u4", 2 * members, rows.nbytes)
            return Index(path, header, rows, positions.reshape(-1, 2))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError):
        return None


def index_files(path: Path) -> tuple[Path, Path]:
    """Return the two places of the index of a shard: beside the shard, and in the user's cache folder."""
    return path.parent / INDEX_FOLDER / f"{path.name}.index", cached_index(str(path.absolute()))


def cached_index(url: str) -> Path:
    """Return the place in the user's cache folder of the index of a shard; `url` is the shard's path or address."""
    key = hashlib.sha256(os.fsencode(url)).hexdigest()[:20]
    return cache_folder() / f"indexes/{key[:2]}/{key}.index"


def open_index(path: Path) -> Index:
    """Read the index of a shard. Without an up-to-date index, make one and keep it in the user's cache folder.

    A broken shard has `faults`, and the samples before the fault. A shard that cannot be opened has only `faults`.
    """
    index = _find_index(path)
    if index is None:
        index = scan(path)
        if index.header.stamp:
            write_index(index_files(path)[1], index)
    return index


def _find_index(path: Path, tables: bool = True) -> Index | None:
    mark = stamp(path)
    found = (read_index(path, file, mark, tables) for file in index_files(path) if mark)
    return next(filter(None, found), None)


def open_indexes(paths: Iterable[Path], tables: bool = True) -> dict[Path, Index]:
    """Read the indexes of many shards; with `tables=False` tables may be empty. Several processes scan the shards
    without an index."""
    found = {path: _find_index(path, tables) for path in paths}
    todo = [path for path, index in found.items() if index is None]
    # fewer are done before other processes would have started; threads would not run in parallel
    if len(todo) > 8:
        print(f"diffclip: indexing {len(todo)} shards, once", file=sys.stderr, flush=True)
        found |= zip(todo, map_processes(open_index, todo, min(cores(), len(todo))), strict=True)
    return {path: index or open_index(path) for path, index in found.items()}
