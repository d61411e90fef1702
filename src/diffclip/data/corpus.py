"""The training data: weighted sources of shards, on disk or at addresses, and any usable sample of them by number."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclip.data.images import IMAGE, image_member
from diffclip.data.index import (
    OPEN_FILES,
    Header,
    Needed,
    Table,
    TarFiles,
    digest_of,
    index_files,
    key_of,
    open_index,
    open_indexes,
    read_index,
    stamp,
    usable_rows,
    write_index,
)
from diffclip.data.order import Layout
from diffclip.data.remote import MissingError, RemoteShards, expand_remote, is_remote, shown
from diffclip.data.shards import expand_shards
from diffclip.errors import Fault, InputError, sample_fault
from diffclip.files import cache_folder

CAPTION_KEY = "caption"
# Shards that a process shuffles together where not all are at hand.
_WINDOW = 16


class SourceFacts(NamedTuple):
    """A source as it was found: its name, its numbers of shards and of usable samples, its weight."""

    spec: str
    shards: int
    samples: int
    weight: float


class Sample(NamedTuple):
    """A sample's key, its name for people (shard and key), its captions, and the bytes of its image file."""

    key: str
    name: str
    captions: list[str]
    image: bytes


class _Source(NamedTuple):
    """A source as a recipe names it, and the path or address of each of its shards, and whether that is remote."""

    specs: list[str]
    weight: float
    places: list[tuple[str, bool]]


class _Shard(NamedTuple):
    """A shard by its path or address, its name for people, and its usable samples."""

    place: str
    name: str
    remote: bool
    header: Header
    usable: int


class _Opened(NamedTuple):
    """A shard at hand: `rows` are the rows of its usable samples in `table`."""

    path: Path
    table: Table
    rows: NDArray[np.int64]


def _sources(train: Any) -> list[_Source]:
    """Find the shards of the sources that `train` stands for."""
    sources = []
    for one in train if isinstance(train, list) else [train]:
        shards, weight = (one.shards, one.weight) if hasattr(one, "shards") else (one, 1.0)
        specs = [str(spec) for spec in (shards if isinstance(shards, list) else [shards])]
        places: list[tuple[str, bool]] = []
        for spec in specs:
            if is_remote(spec) and not os.path.exists(spec):
                places += [(address, True) for address in expand_remote(spec)]
            else:
                places += [(str(path), False) for path in expand_shards(spec)]
        sources.append(_Source(specs, weight, places))
    if not sources or not all(source.places for source in sources):
        raise InputError("no shards given: name .tar files, a folder of them or a range '{0..9}.tar'")
    return sources


class Corpus:
    """The usable samples, those with an image and a caption, of weighted sources; numbered through all shards.

    Samples are counted from the indexes beside the shards where there are any; nothing is written there before
    `keep_indexes`. Without a window the indexes of all shards are in memory, which forked data workers share; with one,
    only how many samples each shard has, and the indexes of the shards that are being read. An object may be forked or
    pickled to data workers; it is not for several threads at once.

    Args:
        train: a path or an address; an object with `shards` and `weight`, as a recipe has; or a list of these.
        caption_key: the key of `.json` that holds a caption or a list of them. Unless it is another than the
            usual, a sample's `.txt`, one caption a line, comes first.
        window: shards that a process shuffles together. None: all samples, or 16 shards where one is remote.
        cache: folder for copies of remote shards; None: in the user's cache folder.
        cache_gb: size of these copies in 10^9 bytes, beyond which the oldest go; None: no limit.

    Attributes:
        samples: how many samples are usable.
        per_epoch: how many samples an epoch shows: over the sources, the sum of round(weight × samples).
        faults: what is skipped: broken shards, samples without an image or a caption.
        sources: what was found, source by source.
        layout: the usable samples of each shard, and the weights.
        window, caption_key: as given.

    Raises:
        InputError: shards are missing, or not a single sample is usable.
        DiffCLIPError: an address does not answer.
    """

    def __init__(
        self,
        train: Any,
        caption_key: str = CAPTION_KEY,
        window: int | None = None,
        cache: str | Path | None = None,
        cache_gb: float | None = None,
    ) -> None:
        sources = _sources(train)
        flat = [place for source in sources for place in source.places]
        local = [place for place, remote in flat if not remote]
        self._copies = None
        if len(local) < len(flat):
            limit = None if cache_gb is None else int(cache_gb * 1e9)
            self._copies = RemoteShards(Path(cache) if cache else cache_folder() / "shards", limit)
            window = window or _WINDOW
        self.caption_key, self.window = caption_key, window
        self._needed: Needed = {"image": IMAGE, "caption": caption_members(caption_key)}
        self._extensions = tuple(name for names in self._needed.values() for name in names)
        self._opened: dict[int, _Opened | Fault] = {}
        self._files = TarFiles(window or OPEN_FILES)
        indexes = dict(
            zip(local, open_indexes([Path(place) for place in local], window is None), strict=True)
        )
        headers = {place: header for place, (header, _) in indexes.items()}
        if self._copies is not None:
            headers |= self._copies.headers([place for place, remote in flat if remote])
        self._shards = [
            _Shard(place, shown(place), remote, headers[place], headers[place].usable(self._needed))
            for place, remote in flat
        ]
        self.faults = [Fault(shard.name, reason) for shard in self._shards for reason in shard.header.faults]
        for number, shard in enumerate(self._shards):
            if window is None:
                table = indexes[shard.place][1]
                rows, lacks = usable_rows(table, self._needed)
                self.faults += [Fault(f"{shard.place}:{key_of(table[row])}", lack) for row, lack in lacks]
                self._opened[number] = _Opened(Path(shard.place), table, rows)
            else:
                self.faults += [Fault(shard.name, reason) for reason in shard.header.missing(self._needed)]
        self._ends = np.cumsum([shard.usable for shard in self._shards], dtype=np.int64)
        numbers = iter([shard.usable for shard in self._shards])
        usable = [[next(numbers) for _ in source.places] for source in sources]
        self.layout = Layout(usable, [source.weight for source in sources])
        self.samples, self.per_epoch = self.layout.total, self.layout.per_epoch
        self.sources = [
            SourceFacts(", ".join(source.specs), len(counts), sum(counts), source.weight)
            for source, counts in zip(sources, usable, strict=True)
        ]
        if not self.samples:
            why = f" (first: {self.faults[0]})" if self.faults else ""
            raise InputError(f"no sample in {self} has an image and a caption{why}: give WebDataset tars")

    @property
    def is_remote(self) -> bool:
        """True where any shard is remote."""
        return self._copies is not None

    def __str__(self) -> str:
        more = f" and {len(self._shards) - 1} more shards" if len(self._shards) > 1 else ""
        return f"{self._shards[0].name}{more}"

    def identity(self) -> str:
        """A digest of the name, size and time of each shard."""
        return digest_of([[_base(shard), shard.header.stamp] for shard in self._shards])

    def order_identity(self) -> str:
        """A digest of everything but the seed that decides the order of an epoch.

        It stays the same where shards are copied to another place, and is the same in all processes of a run.
        """
        shards = [[_base(shard), shard.usable] for shard in self._shards]
        return digest_of(
            [shards, list(map(len, self.layout.sources)), list(self.layout.weights), self.window]
        )

    def read(self, i: int) -> Sample | Fault:
        """Read the captions and the image file of usable sample `i`, or return its fault or its shard's.

        Raises:
            DiffCLIPError: a remote address does not answer.
        """
        number = int(self._ends.searchsorted(i, side="right"))
        shard, opened = self._shards[number], self._open(number)
        if isinstance(opened, Fault):
            return opened
        place = i - int(self._ends[number]) + shard.usable
        if place >= len(opened.rows):
            return Fault(shard.name, "has changed since its samples were counted: start again")
        row = opened.table[opened.rows[place]]
        key = key_of(row)
        name = f"{shard.name}:{key}"
        try:
            members = self._files.read(opened.path, row, self._extensions)
        except (InputError, OSError) as error:
            return sample_fault(name, error)
        try:
            captions = captions_of(members, name, self.caption_key)
        except InputError as error:
            return sample_fault(name, error, "caption")
        return Sample(key, name, captions, image_member(members, name))

    def files(self) -> list[Path]:
        """The shards on a disk."""
        return [Path(shard.place) for shard in self._shards if not shard.remote]

    def keep_indexes(self) -> None:
        """Write the indexes of local shards beside them, where that folder can be written."""
        for shard in self._shards:
            path = Path(shard.place)
            file = index_files(path)[0]
            if not shard.remote and shard.header.stamp and not read_index(file, stamp(path), whole=False):
                write_index(file, *open_index(path))

    def ahead(self, shards: Sequence[int]) -> None:
        """Fetch the remote ones of these shards, in this order, in the background."""
        if self._copies is not None:
            self._copies.ahead(
                [self._shards[number].place for number in shards if self._shards[number].remote]
            )

    def close(self) -> None:
        """Stop fetching ahead."""
        if self._copies is not None:
            self._copies.close()

    def _open(self, number: int) -> _Opened | Fault:
        """Find a shard at hand, or open it in place of the one that was used longest ago."""
        opened = self._opened.pop(number, None)
        if opened is None:
            shard = self._shards[number]
            try:
                if shard.remote and self._copies is not None:
                    path, table = self._copies.open(shard.place)
                    self._files.open(path)
                else:
                    path = Path(shard.place)
                    header, table = open_index(path)
                    if header.faults and not len(table):
                        raise InputError(header.faults[0])
                opened = _Opened(path, table, usable_rows(table, self._needed)[0])
            except (InputError, OSError) as error:
                if shard.remote and isinstance(error, InputError) and not isinstance(error, MissingError):
                    raise  # the cache, or the address
                opened = sample_fault(shard.name, error)
            while len(self._opened) >= (self.window or 1):
                self._opened.pop(next(iter(self._opened)))
        self._opened[number] = opened
        return opened


def _base(shard: _Shard) -> str:
    return shard.name.rpartition("/")[2]


def caption_members(caption_key: str = CAPTION_KEY) -> tuple[str, ...]:
    """List where captions may be: `.txt`, then `.json`; with a key other than the usual, only `.json`."""
    return ("txt", "json") if caption_key == CAPTION_KEY else ("json",)


def captions_of(sample: Mapping[str, bytes], name: str, caption_key: str = CAPTION_KEY) -> list[str]:
    """Read the sample's captions: the lines of `.txt`, or the string or strings under `caption_key` in `.json`.

    Blank captions are dropped.

    Raises:
        InputError: no caption, none that is not blank, or a member that cannot be read.
    """
    extension = next((member for member in caption_members(caption_key) if member in sample), None)
    if extension is None:
        raise InputError(f"{name} has no caption")
    try:
        text = sample[extension].decode("utf-8-sig")
        found = text.splitlines() if extension == "txt" else json.loads(text)[caption_key]
    except UnicodeDecodeError:
        raise InputError(f"{name} has a caption that is not UTF-8 text") from None
    except (ValueError, RecursionError):  # of json, and of numbers with thousands of digits
        raise InputError(f"{name} has a .json that is not valid JSON") from None
    except (KeyError, TypeError, IndexError):
        raise InputError(f"{name} has no key {caption_key!r} in its .json") from None
    captions = [found] if isinstance(found, str) else found
    if not isinstance(captions, list) or not all(isinstance(caption, str) for caption in captions):
        raise InputError(f"{name} has no string or strings as {caption_key!r} in its .json")
    captions = [caption.strip() for caption in captions if caption.strip()]
    if not captions:
        raise InputError(f"{name} has an empty caption")
    return captions
