"""The samples of tar shards, on disk or at addresses, by number: for training, validation and evaluation."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffclip.data.images import read_image
from diffclip.data.index import (
    BLOCK,
    Header,
    Index,
    index_files,
    open_index,
    open_indexes,
    read_index,
    stamp,
    write_index,
)
from diffclip.data.members import ENDINGS_ADVICE, Members, choose, count_passed_over
from diffclip.data.order import Layout
from diffclip.data.remote import RemoteShards, expand_remote, is_remote
from diffclip.data.shards import SEVERAL, expand_shards
from diffclip.errors import Fault, InputError, hide_secrets
from diffclip.files import cache_folder, digest_of

# Number of shards that a process shuffles together if some shards are remote.
_WINDOW = 16
# Number of files that a process keeps open.
_OPEN_FILES = 256


class _Shard(NamedTuple):
    """A shard by its path or address, its name for messages, and the number of its samples."""

    url: str
    name: str
    header: Header
    samples: int


class _Opened(NamedTuple):
    """An open shard: its samples' keys, and block and size of each label's member [samples, labels, 2]. `file` is the
    open shard if the shard may be removed while it is in use."""

    path: Path
    header: Header
    keys: NDArray[np.bytes_]
    positions: NDArray[np.uint32]
    file: IO[bytes] | None = None


class TarSample(NamedTuple):
    """A sample of a `TarSet`: its key, its name (shard and key, for messages), and the reader of its members."""

    key: str
    name: str
    members: Members
    shard: _Opened
    row: int

    def read(self, *labels: str) -> dict[str, bytes]:
        """Read the members with these labels that the sample has. Raise `InputError` if the shard became shorter since
        its samples were counted (other changes are not seen), and `OSError` if it cannot be read."""
        shard, contents = self.shard, {}
        if self.row >= len(shard.keys):
            reasons = (*shard.header.faults, "has changed since its samples were counted: start again")
            raise InputError(f"{self.name} {reasons[0]}")
        # keep a reference, so that another thread cannot close the file by evicting it from the cache
        file = shard.file or _open_file(shard.path, shard.header.stamp)
        positions = shard.positions[self.row].tolist()
        for label, (block, size) in zip(self.members.labels, positions, strict=True):
            if size and label in labels:
                # pread does not use the file's position, which forked processes share
                contents[label] = os.pread(file.fileno(), size, block * BLOCK)
                if len(contents[label]) < size:
                    raise InputError(f"{shard.path} became shorter while it was read: start again")
        return contents


class TarSet:
    """The samples of weighted sources of shards that have the needed members, numbered across all shards.

    Without a window, the indexes of all shards are in memory, and forked data workers share them. With a window, only
    the header of each shard and the indexes of the shards that are being read are in memory. A set may be forked to
    data workers, or pickled before its first read. Several threads must not use it at once.

    Args:
        sources: a path or an address; an object with `shards` and `weight`, as a recipe has; or a list of these.
        members: the members to read, and those that a sample needs.
        window: number of shards that a process shuffles together. None: all samples, or 16 shards if one is remote.
        cache: folder for copies of remote shards; None: in the user's cache folder.
        cache_gb: limit for these copies in 10^9 bytes; the least recently used are removed. None: no limit.

    Attributes:
        faults: the skipped broken shards and samples without a needed member.
        notes: oddities of the shards, of which nothing is skipped.
        sources: for each source its name (`spec`), its numbers of `shards` and `samples`, its `weight`.
        layout: the samples of each shard, and the weights.

    Raises:
        InputError: shards are missing, or not a single sample has the needed members.
        DiffCLIPError: an address does not answer.
    """

    def __init__(
        self,
        sources: Any,
        members: Members,
        window: int | None = None,
        cache: str | Path | None = None,
        cache_gb: float | None = None,
    ) -> None:
        found = [_find_source(source) for source in (sources if isinstance(sources, list) else [sources])]
        urls = [url for _, _, shards in found for url in shards]
        if not urls:
            raise InputError("no shards given: name .tar files, a folder of them or a range '{0..9}.tar'")
        remote = [url for url in urls if is_remote(url)]
        self.is_remote = bool(remote)
        self.members, self.window = members, window or (_WINDOW if remote else None)
        folder = Path(cache).expanduser() if cache else cache_folder() / "shards"
        self._copies = RemoteShards(folder, cache_gb)
        indexes = open_indexes((Path(url) for url in urls if not is_remote(url)), self.window is None)
        headers = {str(path): index.header for path, index in indexes.items()} | self._copies.headers(remote)
        self._shards: list[_Shard] = []
        self._opened: dict[int, _Opened] = {}  # by number
        self.faults = [Fault(hide_secrets(url), reason) for url in urls for reason in headers[url].faults]
        self.notes: list[Fault] = []
        for number, url in enumerate(urls):
            header, name = headers[url], hide_secrets(url)
            samples, notes, lacks = _survey(header, members)
            self._shards.append(_Shard(url, name, header, samples))
            self.notes += [Fault(name, note, "note") for note in notes]
            if self.window is None:
                self._opened[number] = _select(indexes[Path(url)], members)
            if lacks and self.window is None:
                self.faults += _name_incomplete(indexes[Path(url)], lacks)
            elif lacks:
                count = sum(header.counts[shape] for shape in lacks)
                needed = " or ".join(name for name, _ in members.needed)
                reason = f"holds {count} sample{'s' * (count != 1)} without {needed}"
                self.faults.append(Fault(name, f"{reason} (the first {lacks[min(lacks)]})"))
        self._bounds = np.cumsum([0, *(shard.samples for shard in self._shards)])
        sizes = {shard.url: shard.samples for shard in self._shards}
        counts = [[sizes[url] for url in shards] for _, _, shards in found]
        self.layout = Layout(counts, [weight for _, weight, _ in found])
        self.sources: list[dict[str, Any]] = [
            {"spec": ", ".join(specs), "shards": len(samples), "samples": sum(samples), "weight": weight}
            for (specs, weight, _), samples in zip(found, counts, strict=True)
        ]
        if not len(self):
            fault = f" (first: {self.faults[0]})" if self.faults else ""
            needs = " and ".join(name for name, _ in members.needed)
            raise InputError(f"no sample in {self} has {needs}{fault}: {members.advice}")

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def __str__(self) -> str:
        rest = f" and {len(self._shards) - 1} more shards" if len(self._shards) > 1 else ""
        return f"{self._shards[0].name}{rest}"

    def __getitem__(self, i: int) -> TarSample:
        """Find sample `i`, of which nothing is read yet. Raise `DiffCLIPError` if a remote shard cannot be copied."""
        number = int(self._bounds.searchsorted(i, side="right")) - 1
        row, shard, name = i - int(self._bounds[number]), self._open(number), self._shards[number].name
        if row >= len(shard.keys):  # the shard has changed
            return TarSample("", name, self.members, shard, row)
        key = bytes(shard.keys[row]).decode("utf-8", "surrogateescape")
        return TarSample(key, f"{name}:{key}", self.members, shard, row)

    def name(self, i: int) -> str:
        """Return the shard and key of sample `i`, for messages."""
        return self[i].name

    def image(self, i: int) -> Image.Image:
        """Read the image of sample `i` as RGB. Raise `InputError` or `OSError` if it cannot be read."""
        sample = self[i]
        return read_image(sample.read("image")["image"], sample.name)

    @cached_property
    def identity(self) -> str:
        """A digest of the name, size and time of each shard."""
        return digest_of([[shard.name.rpartition("/")[2], shard.header.stamp] for shard in self._shards])

    @cached_property
    def order_identity(self) -> str:
        """A digest of all that decides the order of an epoch, except the seed. The shards' folder does not count."""
        shards = [[shard.name.rpartition("/")[2], shard.samples] for shard in self._shards]
        sizes = [len(source) for source in self.layout.sources]
        return digest_of([shards, sizes, list(self.layout.weights), self.window])

    def keep_indexes(self) -> None:
        """Write the indexes of local shards beside them, if that folder is writable."""
        for path in (Path(shard.url) for shard in self._shards):
            file = index_files(path)[0]
            if path.is_file() and not read_index(path, file, stamp(path), tables=False):
                write_index(file, open_index(path))

    def fetch(self, number: int) -> None:
        """Copy a shard to the cache if it is remote."""
        self._local(self._shards[number].url)

    def _local(self, url: str) -> Path:
        return self._copies.copy(url) if is_remote(url) else Path(url)

    def _open(self, number: int) -> _Opened:
        """Return a shard; if it is not open, open it in place of the least recently used one."""
        opened = self._opened.pop(number, None)
        if opened is None:
            opened = _select(open_index(self._local(self._shards[number].url)), self.members)
            with suppress(OSError):  # a shard that is gone or unreadable has faults
                opened = opened._replace(file=opened.path.open("rb", buffering=0))
            while len(self._opened) >= (self.window or 1):
                self._opened.pop(next(iter(self._opened)))
        self._opened[number] = opened
        return opened


def _find_source(source: Any) -> tuple[list[str], float, list[str]]:
    """Find the names of a source's shards, its weight, and the path or address of each shard."""
    shards, weight = (source.shards, source.weight) if hasattr(source, "shards") else (source, 1.0)
    specs = [str(spec) for spec in (shards if isinstance(shards, list) else [shards])]
    for spec in specs:
        if ".tar::" in spec and spec.endswith(".tar"):  # as OpenCLIP joins them
            raise InputError(f"{hide_secrets(spec)} names several shards: {SEVERAL}")
    expanded = [expand_remote(spec) if is_remote(spec) else map(str, expand_shards(spec)) for spec in specs]
    return specs, weight, [url for urls in expanded for url in urls]


def _survey(header: Header, members: Members) -> tuple[int, list[str], dict[int, str]]:
    """Count the samples of a shard that have the needed members. Return their number, the oddities of the shard, and
    what the samples of each other shape lack."""
    samples, more, lacks = 0, 0, {}
    for shape, (endings, count) in enumerate(zip(map(tuple, header.shapes), header.counts, strict=True)):
        if groups := choose(endings, members):
            samples += count * len(groups)
            more += count * count_passed_over(endings, members)
        else:
            lacks[shape] = members.missing(endings)
    note = f"holds {more} more images with a caption, in longer endings: {ENDINGS_ADVICE}"
    return samples, header.notes + [note] * bool(more), lacks


def _name_incomplete(index: Index, lacks: dict[int, str]) -> list[Fault]:
    """Name the samples of the shapes in `lacks`."""
    rows = index.rows[np.isin(index.rows["shape"], list(lacks))].tolist()
    keys = [(bytes(key).decode("utf-8", "surrogateescape"), shape) for key, shape, _ in rows]
    return [Fault(f"{index.path}:{key}", lacks[shape]) for key, shape in keys]


def _select(index: Index, members: Members) -> _Opened:
    """Find the samples of a shard that have the needed members, and the members to read, in the order of the tar."""
    numbers, keys = [np.zeros(0, np.int64)], [index.rows["key"][:0]]
    positions = [np.zeros((0, len(members.labels), 2), np.uint32)]
    # the last row is for columns of -1
    entries = np.concatenate([index.positions, np.zeros((1, 2), np.uint32)])
    for shape, endings in enumerate(index.header.shapes):
        for group, columns in choose(tuple(endings), members):
            rows = np.flatnonzero(index.rows["shape"] == shape)
            chosen, wanted = index.rows[rows], np.array(columns)
            suffix = f".{group}".encode("utf-8", "surrogateescape")
            numbers.append(rows)
            keys.append(np.char.add(chosen["key"], suffix) if group else chosen["key"])
            firsts = chosen["first"].astype(np.int64)[:, None]
            positions.append(entries[np.where(wanted < 0, -1, firsts + wanted)])
    order = np.argsort(np.concatenate(numbers), kind="stable")
    return _Opened(index.path, index.header, np.concatenate(keys)[order], np.concatenate(positions)[order])


@lru_cache(_OPEN_FILES)
def _open_file(path: Path, mark: str) -> IO[bytes]:
    """Open a file and keep it open. `mark`, its stamp, distinguishes it from an earlier file of the same name."""
    return path.open("rb", buffering=0)
