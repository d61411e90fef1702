"""The index of a tar shard: which samples it holds, and where their members lie.

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
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from diffclip.data.samples import IMAGE
from diffclip.errors import InputError
from diffclip.files import cache_folder, write_atomically

INDEX_FOLDER = "diffclip-index"
MEMBERS = (*IMAGE, "txt", "json", "cls", "mask.png", "seg.png")
"""The extensions that are indexed; all others are passed over."""

T = TypeVar("T")
Table = NDArray[np.void]
Needed = Mapping[str, Sequence[str]]
"""The name of a member → the extensions it may have."""

_FORMAT = 3
BLOCK = 512
_KEY_AND_EXTENSION = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_METADATA = re.compile(r"__[^/]*__($|/)")
_GZIP = b"\x1f\x8b"
_NO_SAMPLES = np.zeros(0, [("key", "S1")])
# Fewer shards than this are scanned before other processes have started.
_WORTH_PROCESSES = 9
# Seconds of silence at first, and between two lines of progress.
_SILENT, _BETWEEN = 3.0, 30.0


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

    def __len__(self) -> int:
        return sum(self.samples.values())

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
    there = table.dtype.names or ()
    held = {
        what: np.any(
            [np.zeros(len(table), bool), *(table[name][:, 1] > 0 for name in names if name in there)], axis=0
        )
        for what, names in needed.items()
    }
    usable = np.logical_and.reduce(list(held.values()))
    lacks = [
        (row, "has no " + " and no ".join(what for what in needed if not held[what][row]))
        for row in np.flatnonzero(~usable).tolist()
    ]
    return np.flatnonzero(usable), lacks


def key_of(row: Any) -> str:
    """The key of a sample."""
    return bytes(row["key"]).decode("utf-8", "surrogateescape")


def stamp(path: Path) -> str:
    """The size and the time of a file, "" where it cannot be opened."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def scan(path: Path, mark: str) -> tuple[Header, Table]:
    """Read the headers of the tar at `path`, seeking over the contents; `mark` is its stamp."""
    table: Any = _NO_SAMPLES
    faults: list[str] = []
    try:
        if not path.is_file():
            raise OSError(f"it {'is not a regular file' if path.exists() else 'does not exist'}")
        with path.open("rb") as file:
            table, faults = _scan(file, path.stat().st_size)
    except OSError as error:
        faults = [f"cannot be read ({error.strerror or error})"]
    names = table.dtype.names[1:]
    sets = np.zeros(len(table), np.int64)
    for number, name in enumerate(names):
        sets |= (table[name][:, 1] > 0).astype(np.int64) << number
    counts = {
        " ".join(name for number, name in enumerate(names) if bits >> number & 1): count
        for bits, count in Counter(sets.tolist()).items()
    }
    return Header(mark, counts, faults), table


def _scan(file: IO[bytes], length: int) -> tuple[Table, list[str]]:
    if not length:
        return _NO_SAMPLES, ["is empty (0 bytes)"]
    if file.read(2) == _GZIP:
        return _NO_SAMPLES, ["is compressed, which leaves no way to single samples: unpack it with gunzip"]
    file.seek(0)
    try:
        tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115
    except tarfile.ReadError:
        return _NO_SAMPLES, ["is not a tar"]
    rows: list[tuple[bytes, dict[str, tuple[int, int]]]] = []
    faults: list[str] = []
    whole = _add_members(tar, length, rows, faults)
    names = [name for name in MEMBERS if any(name in members for _, members in rows)]
    table = np.zeros(
        len(rows), [("key", f"S{max([1, *(len(key) for key, _ in rows)])}"), *((n, "<u4", 2) for n in names)]
    )
    table["key"] = [key for key, _ in rows]
    for name in names:
        table[name] = np.array([members.get(name, (0, 0)) for _, members in rows]).reshape(-1, 2)
    file.seek(tar.offset)
    end = file.read(BLOCK)
    if not whole or len(end) < BLOCK:
        faults.append(f"is cut short, {len(rows)} samples are left")
    elif end.strip(b"\0"):
        faults.append(f"is broken at byte {tar.offset}, {len(rows)} samples before it are left")
    return table, faults


def _add_members(
    tar: tarfile.TarFile,
    length: int,
    rows: list[tuple[bytes, dict[str, tuple[int, int]]]],
    faults: list[str],
) -> bool:
    """Add what is whole in a tar of `length` bytes; return whether its last member was."""
    try:
        while (member := tar.next()) is not None:
            # the archive would otherwise keep every header
            tar.members = []  # type: ignore[attr-defined]
            if member.offset_data + member.size > length:
                return False
            match = _KEY_AND_EXTENSION.match(member.name)
            if not match or _METADATA.match(member.name) or not member.isreg() or member.issparse():
                continue
            key, extension = match[1].encode("utf-8", "surrogateescape"), match[2].lower()
            if not rows or rows[-1][0] != key:
                rows.append((key, {}))
            if extension not in MEMBERS:
                continue
            if member.size >= 1 << 32:
                faults.append(f"holds {member.name} of {member.size} bytes, too large for a sample: skipped")
            elif extension in rows[-1][1]:
                faults.append(f"holds {member.name} twice: the first is used")
            else:
                rows[-1][1][extension] = member.offset_data // BLOCK, member.size
    except tarfile.ReadError as error:
        return "end of data" not in str(error)
    # A damaged field of a header; the reader then stands at its byte.
    except (tarfile.TarError, ValueError, OverflowError, IndexError):
        return True
    return True


def write_index(file: Path, header: Header, table: Table) -> bool:
    """Write an index; False where the folder cannot be written."""
    try:
        with write_atomically(file) as temporary, temporary.open("wb") as handle:
            np.save(handle, np.array(json.dumps({"format": _FORMAT, **asdict(header)})))
            np.save(handle, table)
    except (InputError, OSError):
        return False
    return True


def read_index(file: Path, mark: str) -> tuple[Header, Table] | None:
    """Read an index whole; None where it is absent, damaged or of a shard with another stamp than `mark`, which may be
    the size and a space alone."""
    return _read_index(file, mark, lambda handle: np.load(handle, allow_pickle=False))


def read_header(file: Path, mark: str) -> Header | None:
    """Read the header of an index, or None as `read_index`."""
    found = _read_index(file, mark, lambda handle: _NO_SAMPLES)
    return found and found[0]


def _read_index(
    file: Path, mark: str, read_table: Callable[[IO[bytes]], Table]
) -> tuple[Header, Table] | None:
    try:
        with file.open("rb") as handle:
            found = json.loads(str(np.load(handle, allow_pickle=False)))
            same = found["stamp"] == mark or (mark.endswith(" ") and found["stamp"].startswith(mark))
            if found.pop("format") != _FORMAT or not same:
                return None
            return Header(**found), read_table(handle)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError):
        return None


def index_files(path: Path) -> tuple[Path, Path]:
    """Name where the index of a shard may lie: beside it, and in the user's cache folder."""
    return path.parent / INDEX_FOLDER / f"{path.name}.npy", cached_index(str(path.absolute()))


def cached_index(place: str) -> Path:
    """Name the index in the user's cache folder of the shard at a path or address."""
    folder, _, name = place.rpartition("/")
    key = hashlib.sha256(os.fsencode(folder)).hexdigest()[:20]
    return cache_folder() / "indexes" / key / f"{name[-100:]}.npy"


def open_index(path: Path) -> tuple[Header, Table]:
    """The index of a shard: read where there is one, else made and kept in the user's cache folder.

    A broken shard gives what is whole in it, with `faults`; so does one that cannot be opened.
    """
    mark = stamp(path)
    files = index_files(path)
    for file in files:
        if mark and (found := read_index(file, mark)):
            return found
    header, table = scan(path, mark)
    if mark:
        write_index(files[1], header, table)
    return header, table


def open_header(path: Path) -> Header:
    """The header of a shard's index, as `open_index`."""
    mark = stamp(path)
    for file in index_files(path):
        if mark and (found := read_header(file, mark)):
            return found
    return open_index(path)[0]


def open_headers(paths: Sequence[Path]) -> list[Header]:
    """The headers of many shards; those without an index are scanned by several processes."""
    return _open_all(paths, read_header, open_header)


def open_indexes(paths: Sequence[Path]) -> list[tuple[Header, Table]]:
    """The indexes of many shards, as `open_headers`."""
    return _open_all(paths, read_index, open_index)


def _open_all(
    paths: Sequence[Path], read: Callable[[Path, str], T | None], make: Callable[[Path], T]
) -> list[T]:
    found: dict[Path, T | None] = {}
    for path in paths:
        mark = stamp(path)
        kept = (read(file, mark) for file in index_files(path)) if mark else iter(())
        found[path] = next((one for one in kept if one is not None), None)
    todo = [path for path, one in found.items() if one is None]
    if len(todo) >= _WORTH_PROCESSES:
        for _ in progress(_in_processes(todo), len(todo), "indexing"):
            pass
    made = {path: make(path) for path in todo}
    return [made[path] if one is None else one for path, one in ((path, found[path]) for path in paths)]


def _in_processes(paths: Sequence[Path]) -> Iterator[Header]:
    # Headers are read by Python code, which threads would not do at once.
    with ProcessPoolExecutor(
        os.cpu_count(), multiprocessing.get_context("fork"), initializer=_end_with_parent
    ) as pool:
        yield from pool.map(open_header, paths)


def _end_with_parent() -> None:
    # a handler of the parent would keep this process from ending with the pool
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def progress(results: Iterable[Any], total: int, doing: str) -> Iterator[Any]:
    """Pass on `results`; where they take long, tell on stderr how many of `total` shards are done."""
    due = time.monotonic() + _SILENT
    for done, result in enumerate(results, 1):
        yield result
        if time.monotonic() > due:
            due = time.monotonic() + _BETWEEN
            print(f"diffclip: {doing} {total} shards, once: {done} are ready", file=sys.stderr, flush=True)
