"""The index of a tar shard: its samples and the positions of their members, so that a member is read directly.

Members are grouped as in WebDataset: the key is the path up to the first dot of the base name, the extension is the
rest in lower case, and neighboring members with the same key are a sample. One scan of the headers of a tar gives its
index, a NumPy file: `diffclip-index/NAME.npy` beside the shard, or a file in the user's cache folder. It holds two
arrays, one after the other: a line of JSON (`Header`), and a table with one row per sample. A row has the key and, for
each extension, the position (in blocks of 512 bytes) and size of the member.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclip.data.images import IMAGE
from diffclip.data.workers import data_loader, watch_batches
from diffclip.errors import Fault, InputError
from diffclip.files import cache_folder, cores, write_atomically

INDEX_FOLDER = "diffclip-index"
MEMBERS = (*IMAGE, "txt", "json", "cls", "mask.png", "seg.png")
"""The extensions that are indexed; all others are ignored."""
BLOCK = 512
# Limit for the zeros after the last member: GNU tar pads to 10 KiB, or to the size that `-b` sets.
_PADDING = 1 << 20
# Number of files that a process keeps open.
_OPEN_FILES = 256

MemberTable = NDArray[np.void]
Rows = list[tuple[bytes, dict[str, tuple[int, int]]]]
"""For each sample its key, and for each extension the block and size of the member."""
Needed = Mapping[str, Sequence[str]]
"""The name of a member → the extensions it may have."""

_FORMAT = 3
_KEY_AND_EXTENSION = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_METADATA = re.compile(r"__[^/]*__($|/)")
NO_SAMPLES: MemberTable = np.zeros(0, [("key", "S1")])


@dataclass(frozen=True)
class Header:
    """The summary of a shard.

    Attributes:
        stamp: size and time of the shard (remote: values of its server); the same stamp counts as the same content.
        samples: extensions, joined by spaces → the number of samples with exactly these members, not empty.
        faults: why parts of the shard are skipped.
    """

    stamp: str
    samples: dict[str, int]
    faults: list[str]

    def usable(self, needed: Needed) -> int:
        """Count the samples that have a member for each of `needed`."""
        return sum(
            count
            for extensions, count in self.samples.items()
            if all(set(names).intersection(extensions.split()) for names in needed.values())
        )


class Tar(NamedTuple):
    """A shard and its index. `file` is the open shard, if the shard may be removed while it is in use."""

    path: Path
    header: Header
    table: MemberTable
    file: IO[bytes] | None = None

    def key(self, row: int) -> str:
        """The key of a sample: its path in the tar up to the first dot of the base name."""
        return bytes(self.table["key"][row]).decode("utf-8", "surrogateescape")

    def name(self, row: int) -> str:
        """The shard and key of a sample, for messages."""
        return f"{self.path}:{self.key(row)}"

    def members(self, row: int, extensions: Iterable[str]) -> dict[str, bytes]:
        """Read the members of a sample that have one of `extensions`. Raise `InputError` if the file ends before a
        member ends, and `OSError` if the file cannot be read."""
        contents, positions = {}, self.table[row]
        # keep a reference, so that another thread cannot close the file by evicting it from the cache
        file = self.file or _open_file(self.path, self.header.stamp)
        for extension in extensions:
            block, size = positions[extension].tolist() if extension in positions.dtype.names else (0, 0)
            if size:
                # pread does not use the file's position, which forked processes share
                contents[extension] = os.pread(file.fileno(), size, block * BLOCK)
                if len(contents[extension]) < size:
                    raise InputError(f"{self.path} became shorter while it was read: start again")
        return contents

    def usable(self, needed: Needed) -> tuple[NDArray[np.int64], list[Fault]]:
        """Find the rows that have a member for each of `needed`; the faults say what the other rows lack."""
        none, columns = np.zeros(len(self.table), bool), self.table.dtype.names or ()
        has = {
            member: np.any([none, *(self.table[name][:, 1] > 0 for name in names if name in columns)], axis=0)
            for member, names in needed.items()
        }
        usable = np.all(list(has.values()), axis=0)
        faults = []
        for row in np.flatnonzero(~usable).tolist():
            lack = " and ".join(f"no {member}" for member in has if not has[member][row])
            faults.append(Fault(self.name(row), f"has {lack}"))
        return np.flatnonzero(usable), faults


@lru_cache(_OPEN_FILES)
def _open_file(path: Path, mark: str) -> IO[bytes]:
    """Open a file and keep it open. `mark`, its stamp, distinguishes it from an earlier file of the same name."""
    return path.open("rb", buffering=0)


def stamp(path: Path) -> str:
    """Return the size and time of a file, or "" if it cannot be accessed."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def scan(path: Path) -> tuple[Header, MemberTable]:
    """Read the headers of the tar at `path`, seeking over the contents."""
    mark = stamp(path)
    rows: Rows = []
    try:
        with path.open("rb") as file:
            fault = _read_headers(file, path.stat().st_size, rows)
    except OSError as error:
        rows, fault = [], f"cannot be read ({error.strerror or error})"
    names = [name for name in MEMBERS if any(name in members for _, members in rows)]
    longest = max([1, *(len(key) for key, _ in rows)])
    table = np.zeros(len(rows), [("key", f"S{longest}"), *((name, "<u4", 2) for name in names)])
    table["key"] = [key for key, _ in rows]
    for name in names:
        table[name] = [members.get(name, (0, 0)) for _, members in rows]
    extensions = (" ".join(name for name in names if members.get(name, (0, 0))[1]) for _, members in rows)
    return Header(mark, dict(Counter(extensions)), [fault] if fault else []), table


def _read_headers(file: IO[bytes], length: int, rows: Rows) -> str | None:
    """Add the samples of a tar of `length` bytes to `rows`, up to the first broken member; return its fault or None."""
    if not length:
        return "is empty (0 bytes)"
    try:
        tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115
    except tarfile.ReadError:
        file.seek(0)
        return "is compressed: unpack it with gunzip" if file.read(2) == b"\x1f\x8b" else "is not a tar"
    whole = False
    # tarfile raises these errors for a damaged header
    with suppress(tarfile.TarError, ValueError, OverflowError, IndexError, MemoryError):
        while (member := tar.next()) is not None:
            # otherwise the archive would keep every header in memory
            tar.members = []  # type: ignore[attr-defined]
            # a damaged size may be negative or huge, and then the reader may not advance
            if member.size < 0 or tar.offset <= member.offset or member.offset_data + member.size > length:
                break
            _add_member(member, rows)
        else:
            whole = True
    position = file.seek(min(tar.offset, length))
    end = file.read(_PADDING + 1)
    if whole and BLOCK <= len(end) <= _PADDING and not end.strip(b"\0"):
        return None
    samples = f"{len(rows)} sample{'s' * (len(rows) != 1)} before it kept"
    return f"is cut short or broken at byte {position} of {length}, {samples}"


def _add_member(member: tarfile.TarInfo, rows: Rows) -> None:
    match = _KEY_AND_EXTENSION.match(member.name)
    if not match or _METADATA.match(member.name) or not member.isreg() or member.issparse():
        return
    key, extension = match[1].encode("utf-8", "surrogateescape"), match[2].lower()
    if not rows or rows[-1][0] != key:
        rows.append((key, {}))
    if extension in MEMBERS:
        rows[-1][1].setdefault(extension, (member.offset_data // BLOCK, member.size))


def write_index(file: Path, header: Header, table: MemberTable) -> None:
    """Write an index, or skip it if it cannot be written."""
    with suppress(InputError, OSError), write_atomically(file) as temporary, temporary.open("wb") as handle:
        np.save(handle, np.array(json.dumps({"format": _FORMAT, **asdict(header)})))
        np.save(handle, table)


def read_index(file: Path, mark: str | None, tables: bool = True) -> tuple[Header, MemberTable] | None:
    """Read an index. Return None if it is missing or damaged, or if its stamp is not `mark` (None: any stamp).

    With `tables=False`, only the header is read and the table is empty.
    """
    try:
        with file.open("rb") as handle:
            fields = json.loads(str(np.load(handle, allow_pickle=False)))
            if fields.pop("format") != _FORMAT or mark not in (None, fields["stamp"]):
                return None
            return Header(**fields), np.load(handle, allow_pickle=False) if tables else NO_SAMPLES
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError):
        return None


def index_files(path: Path) -> tuple[Path, Path]:
    """Return the two places of the index of a shard: beside the shard, and in the user's cache folder."""
    return path.parent / INDEX_FOLDER / f"{path.name}.npy", cached_index(str(path.absolute()))


def cached_index(place: str) -> Path:
    """Return the place in the user's cache folder of the index of a shard; `place` is the shard's path or address."""
    key = hashlib.sha256(os.fsencode(place)).hexdigest()[:20]
    return cache_folder() / "indexes" / key[:2] / f"{key}.npy"


def open_tar(path: Path) -> Tar:
    """Open a shard with its index. Without an up-to-date index, make one and keep it in the user's cache folder.

    A broken shard has `faults`, and the samples before the fault. A shard that cannot be opened has only `faults`.
    """
    tar = _open_indexed(path)
    if tar is None:
        tar = Tar(path, *scan(path))
        if tar.header.stamp:
            write_index(index_files(path)[1], tar.header, tar.table)
    return tar


def _open_indexed(path: Path, tables: bool = True) -> Tar | None:
    mark = stamp(path)
    indexes = (read_index(file, mark, tables) for file in index_files(path) if mark)
    return next((Tar(path, *index) for index in indexes if index), None)


def open_tars(paths: Iterable[Path], tables: bool = True) -> dict[Path, Tar]:
    """Open many shards; with `tables=False` tables may be empty. Several processes scan the shards without an index."""
    opened = {path: _open_indexed(path, tables) for path in paths}
    tars = {path: tar for path, tar in opened.items() if tar is not None}
    todo = [path for path in opened if path not in tars]
    if len(todo) <= 8:  # done before other processes would have started; threads would not run in parallel
        return tars | {path: open_tar(path) for path in todo}
    print(f"diffclip: indexing {len(todo)} shards, once", file=sys.stderr, flush=True)
    # the workers are forked, so that a script needs no `__main__` guard; `open_tar` opens the shard of each path
    loader = data_loader(todo, min(cores(), len(todo)), batch_size=None, collate_fn=open_tar)
    return tars | dict(zip(todo, watch_batches(loader), strict=True))
