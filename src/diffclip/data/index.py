"""The index of a tar shard: which samples it holds and where their members lie; and reading members by it.

Members are grouped as WebDataset does: the key is the path up to the first dot of the base name, the extension is the
rest in lower case, and neighbors of one key are a sample. One scan of the headers of a tar gives its index, a NumPy
file `diffclip-index/NAME.npy` beside the shard or in the user's cache folder. It holds two arrays, one after the other:
a line of JSON (`Header`), and a row a sample with the key and, for each extension, the place (in blocks of 512 bytes)
and size of the member.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import signal
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from diffclip.data.images import IMAGE
from diffclip.errors import InputError
from diffclip.files import cache_folder, cores, write_atomically

INDEX_FOLDER = "diffclip-index"
MEMBERS = (*IMAGE, "txt", "json", "cls", "mask.png", "seg.png")
"""The extensions that are indexed; all others are passed over."""
BLOCK = 512
# Zeros that a writer may leave behind the last member: GNU tar fills up 10 KiB, or what `-b` says.
_PADDING = 1 << 20
# Files that a process holds open.
_OPEN_FILES = 256

Table = NDArray[np.void]
Rows = list[tuple[bytes, dict[str, tuple[int, int]]]]
"""For each sample its key, and block and size of its members by extension."""
Needed = Mapping[str, Sequence[str]]
"""The name of a member → the extensions it may have."""

_FORMAT = 3
_KEY_AND_EXTENSION = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_METADATA = re.compile(r"__[^/]*__($|/)")
NO_SAMPLES: Table = np.zeros(0, [("key", "S1")])


@dataclass(frozen=True)
class Header:
    """A shard in numbers.

    Attributes:
        stamp: its size and time; while both stay the same, so does its content.
        samples: for each set of extensions, with a space between, how many samples have just these, not empty.
        faults: why some of it is skipped.
    """

    stamp: str
    samples: dict[str, int]
    faults: list[str]

    def usable(self, needed: Needed) -> int:
        """Count the samples that have a member for each of `needed`."""
        return sum(count for held, count in self.samples.items() if not _missing(held.split(), needed))

    def missing(self, needed: Needed) -> list[str]:
        """Say how many samples lack which of `needed`."""
        counts: Counter[str] = Counter()
        for held, count in self.samples.items():
            counts[_missing(held.split(), needed)] += count
        return [f"holds {count} samples that have {lack}" for lack, count in sorted(counts.items()) if lack]


def _missing(held: Sequence[str], needed: Needed) -> str:
    return " and ".join(f"no {what}" for what, names in needed.items() if not set(names) & set(held))


def usable_rows(table: Table, needed: Needed) -> tuple[NDArray[np.int64], list[tuple[int, str]]]:
    """Find the rows that have a member for each of `needed`, and the lack of each of the others."""
    none, there = np.zeros(len(table), bool), table.dtype.names or ()
    has = {
        what: np.any([none, *(table[name][:, 1] > 0 for name in names if name in there)], axis=0)
        for what, names in needed.items()
    }
    usable = np.all(list(has.values()), axis=0)
    lacks = [
        (row, "has " + " and ".join(f"no {what}" for what in has if not has[what][row]))
        for row in np.flatnonzero(~usable).tolist()
    ]
    return np.flatnonzero(usable), lacks


def key_of(row: Any) -> str:
    """Decode the key of a sample."""
    return bytes(row["key"]).decode("utf-8", "surrogateescape")


def stamp(path: Path) -> str:
    """Return the size and time of a file, "" where it cannot be opened."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def digest_of(value: object) -> str:
    """Hash anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def scan(path: Path) -> tuple[Header, Table]:
    """Read the headers of the tar at `path`, seeking over the contents."""
    mark = stamp(path)
    rows: Rows = []
    faults: list[str] = []
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a regular file")
        with path.open("rb") as file:
            _scan(file, path.stat().st_size, rows, faults)
    except OSError as error:
        rows, faults = [], [f"cannot be read ({error.strerror or error})"]
    names = [name for name in MEMBERS if any(name in members for _, members in rows)]
    longest = max([1, *(len(key) for key, _ in rows)])
    table = np.zeros(len(rows), [("key", f"S{longest}"), *((name, "<u4", 2) for name in names)])
    table["key"] = [key for key, _ in rows]
    for name in names:
        table[name] = [members.get(name, (0, 0)) for _, members in rows]
    held = (" ".join(name for name in names if members.get(name, (0, 0))[1]) for _, members in rows)
    return Header(mark, dict(Counter(held)), faults), table


def _scan(file: IO[bytes], length: int, rows: Rows, faults: list[str]) -> None:
    """Add the whole samples of a tar of `length` bytes to `rows`, and its faults to `faults`."""
    if not length:
        faults.append("is empty (0 bytes)")
        return
    try:
        tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115
    except tarfile.ReadError:
        file.seek(0)
        compressed = file.read(2) == b"\x1f\x8b"
        faults.append("is compressed: unpack it with gunzip" if compressed else "is not a tar")
        return
    whole = True
    try:
        while (member := tar.next()) is not None:
            # the archive would otherwise keep every header
            tar.members = []  # type: ignore[attr-defined]
            whole = member.offset_data + member.size <= length
            if not whole:
                break
            _add_member(member, rows)
    except tarfile.ReadError as error:
        whole = "end of data" not in str(error)
    # A damaged field of a header; the reader then stands at its byte.
    except (tarfile.TarError, ValueError, OverflowError, IndexError):
        pass
    file.seek(tar.offset)
    end = file.read(_PADDING + 1)
    if not whole or len(end) < BLOCK:
        faults.append(f"is cut short, {len(rows)} samples are left")
    elif len(end) > _PADDING or end.strip(b"\0"):
        faults.append(f"is broken at byte {tar.offset} of {length}, {len(rows)} samples before it are left")


def _add_member(member: tarfile.TarInfo, rows: Rows) -> None:
    match = _KEY_AND_EXTENSION.match(member.name)
    if not match or _METADATA.match(member.name) or not member.isreg() or member.issparse():
        return
    key, extension = match[1].encode("utf-8", "surrogateescape"), match[2].lower()
    if not rows or rows[-1][0] != key:
        rows.append((key, {}))
    if extension in MEMBERS:
        rows[-1][1].setdefault(extension, (member.offset_data // BLOCK, member.size))


def write_index(file: Path, header: Header, table: Table) -> None:
    """Write an index, where the folder can be written."""
    with suppress(InputError, OSError), write_atomically(file) as temporary, temporary.open("wb") as handle:
        np.save(handle, np.array(json.dumps({"format": _FORMAT, **asdict(header)})))
        np.save(handle, table)


def read_index(file: Path, mark: str | None, whole: bool = True) -> tuple[Header, Table] | None:
    """Read an index; None where it is absent, damaged or of a shard with another stamp than `mark` (None: any).

    Unless `whole`, only the header is read and the table is empty.
    """
    try:
        with file.open("rb") as handle:
            found = json.loads(str(np.load(handle, allow_pickle=False)))
            if found.pop("format") != _FORMAT or mark not in (None, found["stamp"]):
                return None
            return Header(**found), np.load(handle, allow_pickle=False) if whole else NO_SAMPLES
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError):
        return None


def index_files(path: Path) -> tuple[Path, Path]:
    """Name where the index of a shard may lie: beside it, and in the user's cache folder."""
    return path.parent / INDEX_FOLDER / f"{path.name}.npy", cached_index(str(path.absolute()))


def cached_index(place: str) -> Path:
    """Name the index in the user's cache folder of the shard at a path or address."""
    key = hashlib.sha256(os.fsencode(place)).hexdigest()[:20]
    return cache_folder() / "indexes" / key[:2] / f"{key}.npy"


def open_index(path: Path) -> tuple[Header, Table]:
    """Read the index of a shard, or make it and keep it in the user's cache folder.

    A broken shard gives what is whole in it, with `faults`; so does one that cannot be opened.
    """
    found = _kept_index(path)
    if found is None:
        found = scan(path)
        if found[0].stamp:
            write_index(index_files(path)[1], *found)
    return found


def _kept_index(path: Path, whole: bool = True) -> tuple[Header, Table] | None:
    mark = stamp(path)
    kept = (read_index(file, mark, whole) for file in index_files(path) if mark)
    return next(filter(None, kept), None)


def open_indexes(paths: Iterable[Path], whole: bool = True) -> dict[Path, tuple[Header, Table]]:
    """Read the indexes of many shards, unless `whole` only their headers; several processes scan those without one."""
    kept = {path: _kept_index(path, whole) for path in paths}
    found = {path: one for path, one in kept.items() if one is not None}
    todo = [path for path in kept if path not in found]
    if len(todo) <= 8:  # scanned before other processes have started; threads would not run at once
        return found | {path: open_index(path) for path in todo}
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(cores(), context, initializer=_end_with_parent) as pool:
        print(f"diffclip: indexing {len(todo)} shards, once", file=sys.stderr, flush=True)
        return found | dict(zip(todo, pool.map(open_index, todo), strict=True))


def _end_with_parent() -> None:
    # a handler of the parent would keep this process from ending with the pool
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@lru_cache(_OPEN_FILES)
def open_tar(path: Path, mark: str) -> IO[bytes]:
    """Open a file that stays open; `mark`, its stamp, tells it from an earlier one of that name."""
    return path.open("rb", buffering=0)


def read_members(file: IO[bytes], row: Any, extensions: Iterable[str]) -> dict[str, bytes]:
    """Read the members with `extensions` of the sample in a row of the index of the tar `file`.

    Raises:
        InputError, OSError: the file ends before a member does, or cannot be read.
    """
    found = {}
    for extension in extensions:
        block, size = row[extension].tolist() if extension in row.dtype.names else (0, 0)
        if size:
            # without the file's position, which forked processes share
            found[extension] = os.pread(file.fileno(), size, block * BLOCK)
            if len(found[extension]) < size:
                raise InputError(f"{file.name} became shorter while it was read: start again")
    return found
