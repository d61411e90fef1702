"""WebDataset tar shards with random access: any sample by number, without unpacking the rest."""

from __future__ import annotations

import glob
import io
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from braceexpand import braceexpand
from numpy.typing import NDArray
from PIL import Image

from diffclip.data.index import ShardIndex, open_regular
from diffclip.data.index_files import Needed, read_index
from diffclip.data.samples import PICTURE, Fault, picture_of
from diffclip.data.sources import stamp_of
from diffclip.errors import InputError

OPEN_FILES = 256


def expand_shards(spec: str | Path | Sequence[str | Path]) -> list[Path]:
    """The shard files that `spec` names.

    Args:
        spec: a file, a folder (all its *.tar in natural order: 2.tar before 10.tar), a brace range such as
            `train/{000..127}.tar`, a pattern with `*`, or several of these.

    Raises:
        InputError: nothing named, a file that does not exist, a folder or pattern without shards.
    """
    specs = [spec] if isinstance(spec, str | Path) else list(spec)
    shards: list[Path] = []
    for one in specs:
        text = os.path.expanduser(str(one))
        if not text:
            raise InputError("the name of the shards is empty: give a file, a folder or a range '{0..9}.tar'")
        found = [Path(text)] if os.path.exists(text) else _expand(text)
        for path in found:
            shards += tar_files(path) if path.is_dir() else [path]
    if not shards:
        raise InputError("no shards given: name .tar files, a folder of them or a range '{0..9}.tar'")
    return shards


def tar_files(folder: Path) -> list[Path]:
    """All *.tar of `folder`, in natural order.

    Raises:
        InputError: there is none.
    """
    found = [path for path in folder.glob("*.tar") if not path.name.startswith(".")]
    if not found:
        raise InputError(f"no .tar shards in folder {folder}: give the folder that holds them")
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _expand(text: str) -> list[Path]:
    try:
        names = list(braceexpand(text))
    except ValueError:
        raise InputError(f"shards {text!r}: the braces do not pair, write a range as {{0..9}}") from None
    found: list[Path] = []
    missing = []
    for name in names:
        matches = sorted(map(Path, glob.glob(name)), key=_natural) if glob.has_magic(name) else [Path(name)]
        found += [path for path in matches if path.exists()]
        if not matches or not all(path.exists() for path in matches):
            missing.append(name)
    if len(names) == 1 and missing:
        raise InputError(f"shard {text} does not exist: check the path")
    if missing:
        raise InputError(
            f"{len(missing)} of the {len(names)} shards in {text} do not exist, first {missing[0]}: "
            "check the range and the folder"
        )
    return found


class TarFiles:
    """Members of tars, read from where an index says they are. Files are opened on first use, at most `limit`.

    An object may be forked or pickled to data workers; it is not for several threads at once.
    """

    def __init__(self, limit: int = OPEN_FILES) -> None:
        self._limit = limit
        self._files: OrderedDict[Path, io.FileIO] = OrderedDict()

    def read(self, path: Path, members: Iterable[tuple[str, tuple[int, int]]]) -> dict[str, bytes]:
        """The content of `members`: pairs of a name and (offset, size) in bytes.

        Raises:
            InputError: the file ends before a member does.
            OSError: the file cannot be read.
        """
        file = self.open(path)
        return {name: _read(file, path, offset, size) for name, (offset, size) in members}

    def open(self, path: Path) -> io.FileIO:
        """The file, which stays open until `limit` others have been used since; it can be read even if removed.

        Raises:
            OSError: it cannot be opened.
        """
        file = self._files.pop(path, None)
        if file is None:
            file = open_regular(path)
            while len(self._files) >= self._limit:
                self._files.popitem(last=False)[1].close()
        self._files[path] = file
        return file

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": OrderedDict()}


def _read(file: io.FileIO, path: Path, offset: int, size: int) -> bytes:
    # Without the file's position, which the copies of a forked process share.
    data = os.pread(file.fileno(), size, offset)
    while len(data) < size:
        more = os.pread(file.fileno(), size - len(data), offset + len(data))
        if not more:
            raise InputError(f"{path} became shorter while it was read: start again")
        data += more
    return data


class Shards:
    """The samples of several shards, numbered through in the order of the shards.

    An object may be forked or pickled to data workers; it is not for several threads at once.

    Attributes:
        paths: the shards.
        faults: what was skipped: shards cut short, empty or broken. What is whole in them is kept.

    Raises:
        InputError: not a single sample is left.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self._indexes = [read_index(path) for path in self.paths]
        self._ends = np.cumsum([len(index) for index in self._indexes], dtype=np.int64)
        self.faults = [
            Fault(str(path), reason)
            for path, index in zip(self.paths, self._indexes, strict=True)
            for reason in index.faults
        ]
        self._files = TarFiles()
        if not len(self):
            why = f": {self.faults[0]}" if self.faults else ""
            raise InputError(f"not one sample in {self}{why}; give uncompressed WebDataset tars")

    def __str__(self) -> str:
        more = f" and {len(self.paths) - 1} more shards" if len(self.paths) > 1 else ""
        return f"{self.paths[0]}{more}"

    def __len__(self) -> int:
        return int(self._ends[-1])

    def key(self, i: int) -> str:
        """The key of sample `i`: its path in the tar up to the first dot of the base name."""
        shard, local = self._locate(i)
        return self._indexes[shard].key(local)

    def name(self, i: int) -> str:
        """Sample `i` for people: its shard and key."""
        shard, local = self._locate(i)
        return f"{self.paths[shard]}:{self._indexes[shard].key(local)}"

    def sample(self, i: int, extensions: Sequence[str] | None = None) -> dict[str, bytes]:
        """The members of sample `i` by extension, only those in `extensions` if given.

        Raises:
            InputError: the shard has become shorter since it was indexed.
            OSError: the shard cannot be read.
        """
        shard, local = self._locate(i)
        members = self._indexes[shard].members(local).items()
        wanted = (member for member in members if extensions is None or member[0] in extensions)
        return self._files.read(self.paths[shard], wanted)

    def picture(self, i: int) -> Image.Image:
        """The picture of sample `i` in RGB.

        Raises:
            InputError: there is none, or it is broken.
            OSError: the shard cannot be read.
        """
        return picture_of(self.sample(i, PICTURE), self.name(i))

    def identity(self) -> str:
        """A digest of the name, size and time of each shard."""
        return stamp_of((path.name, path) for path in self.paths)

    def usable(self, needed: Needed) -> tuple[NDArray[np.int64], list[Fault]]:
        """The numbers of the samples that have a member for each of `needed`, and the faults of the others.

        Only the index is read.

        Args:
            needed: what a member is called → the extensions it may have.
        """
        numbers: list[NDArray[np.int64]] = []
        faults: list[Fault] = []
        for path, index, end in zip(self.paths, self._indexes, self._ends.tolist(), strict=True):
            found, missing = usable_samples(path, index, needed)
            numbers.append(found + (end - len(index)))
            faults += missing
        return np.concatenate(numbers), faults

    def _locate(self, i: int) -> tuple[int, int]:
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        shard = int(np.searchsorted(self._ends, i, side="right"))
        return shard, i - (int(self._ends[shard - 1]) if shard else 0)


def usable_samples(path: Path, index: ShardIndex, needed: Needed) -> tuple[NDArray[np.int64], list[Fault]]:
    """The numbers, in the shard, of the samples that have a member for each of `needed`; the faults of the others."""
    held = {what: index.has_any(extensions) for what, extensions in needed.items()}
    usable = np.logical_and.reduce(list(held.values()))
    faults = [
        Fault(
            f"{path}:{index.key(i)}",
            "has no " + " and no ".join(what for what in needed if not held[what][i]),
        )
        for i in np.flatnonzero(~usable).tolist()
    ]
    return np.flatnonzero(usable), faults
