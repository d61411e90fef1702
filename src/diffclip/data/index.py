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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
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
OPEN_FILES = 256
"""Files that a process holds open."""

Table = NDArray[np.void]
Rows = list[tuple[bytes, dict[str, tuple[int, int]]]]
"""For each sample its key, and block and size of its members by extension."""
Needed = Mapping[str, Sequence[str]]
"""The name of a member → the extensions it may have."""

_FORMAT = 3
_KEY_AND_EXTENSION = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_METADATA = re.compile(r"__[^/]*__($|/)")
_NO_SAMPLES: Table = np.zeros(0, [("key", "S1")])


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
    there = (table.dtype.names or ())[1:]
    usable = np.ones(len(table), bool)
    for names in needed.values():
        usable &= np.any(
            [np.zeros(len(table), bool), *(table[name][:, 1] > 0 for name in names if name in there)], 0
        )
    lacks = [
        (row, f"has {_missing([name for name in there if table[name][row, 1]], needed)}")
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


def scan(path: Path, mark: str) -> tuple[Header, Table]:
    """Read the headers of the tar at `path`, seeking over the contents; `mark` is its stamp."""
    rows: Rows = []
    faults: list[str] = []
    try:
        if not path.is_file():
            raise OSError(f"it {'is not a regular file' if path.exists() else 'does not exist'}")
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
            _add_member(member, rows, faults)
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


def _add_member(member: tarfile.TarInfo, rows: Rows, faults: list[str]) -> None:
    match = _KEY_AND_EXTENSION.match(member.name)
    if not match or _METADATA.match(member.name) or not member.isreg() or member.issparse():
        return
    key, extension = match[1].encode("utf-8", "surrogateescape"), match[2].lower()
    if not rows or rows[-1][0] != key:
        rows.append((key, {}))
    if extension not in MEMBERS:
        return
    if member.size >= 1 << 32:
        faults.append(f"holds {member.name} of {member.size} bytes, too large for a sample: skipped")
    elif extension in rows[-1][1]:
        faults.append(f"holds {member.name} twice: the first is used")
    else:
        rows[-1][1][extension] = member.offset_data // BLOCK, member.size


def write_index(file: Path, header: Header, table: Table) -> bool:
    """Write an index; False where the folder cannot be written."""
    try:
        with write_atomically(file) as temporary, temporary.open("wb") as handle:
            np.save(handle, np.array(json.dumps({"format": _FORMAT, **asdict(header)})))
            np.save(handle, table)
    except (InputError, OSError):
        return False
    return True


def read_index(file: Path, mark: str | None, whole: bool = True) -> tuple[Header, Table] | None:
    """Read an index; None where it is absent, damaged or of a shard with another stamp than `mark` (None: any).

    Unless `whole`, only the header is read and the table is empty.
    """
    try:
        with file.open("rb") as handle:
            found = json.loads(str(np.load(handle, allow_pickle=False)))
            if found.pop("format") != _FORMAT or mark not in (None, found["stamp"]):
                return None
            return Header(**found), np.load(handle, allow_pickle=False) if whole else _NO_SAMPLES
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError):
        return None


def belongs_to(table: Table, path: Path) -> bool:
    """Tell whether the members of the last sample in `table` lie in the tar at `path` where the table says."""
    try:
        with path.open("rb") as file:
            for name in (table.dtype.names or ())[1:] if len(table) else ():
                block, size = table[-1][name].tolist()
                if block:
                    header = os.pread(file.fileno(), BLOCK, (block - 1) * BLOCK)
                    if tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape").size != size:
                        return False
    except (tarfile.TarError, OSError):
        return False
    return True


def index_files(path: Path) -> tuple[Path, Path]:
    """Name where the index of a shard may lie: beside it, and in the user's cache folder."""
    return path.parent / INDEX_FOLDER / f"{path.name}.npy", cached_index(str(path.absolute()))


def cached_index(place: str) -> Path:
    """Name the index in the user's cache folder of the shard at a path or address."""
    key = hashlib.sha256(os.fsencode(place)).hexdigest()[:20]
    return cache_folder() / "indexes" / key[:2] / f"{key}.npy"


def open_index(path: Path, whole: bool = True) -> tuple[Header, Table]:
    """Read the index of a shard, or make it and keep it in the user's cache folder.

    A broken shard gives what is whole in it, with `faults`; so does one that cannot be opened.
    """
    found = _kept_index(path, whole)
    if found is None:
        mark = stamp(path)
        found = scan(path, mark)
        if mark:
            write_index(index_files(path)[1], *found)
    return found


def _kept_index(path: Path, whole: bool) -> tuple[Header, Table] | None:
    mark = stamp(path)
    kept = (read_index(file, mark, whole) for file in index_files(path)) if mark else iter(())
    return next((one for one in kept if one is not None), None)


def open_indexes(paths: Sequence[Path], whole: bool = True) -> list[tuple[Header, Table]]:
    """Read the indexes of many shards; several processes scan those without one."""
    kept = [_kept_index(path, whole) for path in paths]
    todo = [path for path, one in zip(paths, kept, strict=True) if one is None]
    # Fewer are scanned before other processes have started; threads would not run at once.
    scanned: Iterator[tuple[Header, Table]] = map(partial(open_index, whole=whole), todo)
    if len(todo) > 8:
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        with ProcessPoolExecutor(cores(), context, initializer=_end_with_parent) as pool:
            print(f"diffclip: indexing {len(todo)} shards, once", file=sys.stderr, flush=True)
            scanned = iter(list(pool.map(partial(open_index, whole=whole), todo)))
    return [next(scanned) if one is None else one for one in kept]


def _end_with_parent() -> None:
    # a handler of the parent would keep this process from ending with the pool
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class TarFiles:
    """Read members of tars from their places; the last `limit` files that were read stay open.

    An object may be forked or pickled to data workers; it is not for several threads at once.
    """

    def __init__(self, limit: int = OPEN_FILES) -> None:
        self._limit = limit
        self._files: dict[Path, IO[bytes]] = {}

    def open(self, path: Path) -> IO[bytes]:
        """Open a file, or find it open; it can then be read even if it is removed."""
        file = self._files.pop(path, None)
        if file is None:
            file = path.open("rb", buffering=0)
            while len(self._files) >= self._limit:
                self._files.pop(next(iter(self._files))).close()
        self._files[path] = file
        return file

    def read(self, path: Path, row: Any, extensions: Iterable[str] | None = None) -> dict[str, bytes]:
        """Read the members of the sample in a row of an index, only those with `extensions` if given.

        Raises:
            InputError, OSError: the file ends before a member does, or cannot be read.
        """
        descriptor, found = self.open(path).fileno(), {}
        for extension in row.dtype.names[1:] if extensions is None else extensions:
            if extension in row.dtype.names and row[extension][1]:
                block, size = row[extension].tolist()
                # without the file's position, which forked processes share
                found[extension] = os.pread(descriptor, size, block * BLOCK)
                if len(found[extension]) < size:
                    raise InputError(f"{path} became shorter while it was read: start again")
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": {}}
