"""The training data: weighted sources of shards, on disk or at addresses, and any usable sample of them by number."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclip.data.index import (
    Header,
    Needed,
    Table,
    index_files,
    key_of,
    open_headers,
    open_index,
    open_indexes,
    read_header,
    stamp,
    usable_rows,
    write_index,
)
from diffclip.data.order import Layout
from diffclip.data.remote import RemoteShards, expand_remote, is_remote, shown
from diffclip.data.samples import CAPTION_KEY, IMAGE, Fault, caption_members, sample_fault
from diffclip.data.shards import OPEN_FILES, TarFiles, expand_shards
from diffclip.data.sources import digest_of
from diffclip.errors import InputError
from diffclip.files import cache_folder

# Shards that a process shuffles together where not all are at hand.
_WINDOW = 16


class SourceFacts(NamedTuple):
    """A source as it was found: its name, its numbers of shards and of usable samples, its weight."""

    spec: str
    shards: int
    samples: int
    weight: float


class Sample(NamedTuple):
    """A sample's key, its name for people (shard and key), and its members by extension."""

    key: str
    name: str
    members: dict[str, bytes]


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


def open_corpus(
    train: Any,
    caption_key: str = CAPTION_KEY,
    window: int | None = None,
    cache: str | Path | None = None,
    cache_gb: float | None = None,
) -> Corpus:
    """Find the shards of all sources and count their samples, from the indexes beside them where there are any.

    Nothing is written beside the shards: see `Corpus.keep_indexes`.

    Args:
        train: a path or an address; a mapping or object with `shards` and `weight`; or several of these.
        caption_key: the key of `.json` that holds a caption or a list of them. Unless it is another than the
            usual, a sample's `.txt`, one caption a line, comes first.
        window: shards that a process shuffles together. None: all samples, or 16 shards where one is remote.
        cache: folder for copies of remote shards; None: in the user's cache folder.
        cache_gb: size of these copies in 10^9 bytes, beyond which the oldest go; None: no limit.

    Raises:
        InputError: shards are missing, or not a single sample is usable.
        DiffCLIPError: an address does not answer.
    """
    parts = _parts(train)
    places = [[place for spec in specs for place in _places(spec)] for specs, _ in parts]
    copies = None
    if any(remote for source in places for _, remote in source):
        limit = None if cache_gb is None else int(cache_gb * 1e9)
        copies = RemoteShards(Path(cache) if cache else cache_folder() / "shards", limit)
        window = window or _WINDOW
    return Corpus(parts, places, caption_key, window, copies)


def _parts(train: Any) -> list[tuple[list[str], float]]:
    """The sources that `train` stands for, each with its weight."""
    several = not isinstance(train, str | Path | Mapping) and not hasattr(train, "shards")
    parts = []
    for one in train if several else [train]:
        if isinstance(one, str | Path):
            specs, weight = one, 1.0
        elif isinstance(one, Mapping):
            specs, weight = one["shards"], one.get("weight", 1.0)
        else:
            specs, weight = one.shards, one.weight
        named = [str(specs)] if isinstance(specs, str | Path) else [str(spec) for spec in specs]
        if not 0 < weight < math.inf:
            raise InputError(f"weight {weight} of {', '.join(named)} must be a number greater than 0")
        parts.append((named, weight))
    if not parts or not all(named for named, _ in parts):
        raise InputError("no shards given: name .tar files, a folder of them or a range '{0..9}.tar'")
    return parts


def _places(spec: str) -> list[tuple[str, bool]]:
    """The path or address of each shard that `spec` names, and whether it is remote."""
    if is_remote(spec) and not os.path.exists(spec):
        return [(address, True) for address in expand_remote(spec)]
    return [(str(path), False) for path in expand_shards(spec)]


class Corpus:
    """The usable samples, those with an image and a caption, of weighted sources; numbered through all shards.

    Without a window the indexes of all shards are in memory, which forked data workers share; with one, only how many
    samples each shard has, and the indexes of the shards that are being read. An object may be forked or pickled to
    data workers; it is not for several threads at once. It is made by `open_corpus`.

    Attributes:
        samples: how many samples are usable.
        per_epoch: how many samples an epoch shows: over the sources, the sum of round(weight × samples).
        faults: what is skipped: broken shards, samples without an image or a caption.
        sources: what was found, source by source.
        layout: the usable samples of each shard, and the weights.
        window: shards that a process shuffles together; None: all samples.
    """

    def __init__(
        self,
        parts: Sequence[tuple[list[str], float]],
        places: Sequence[Sequence[tuple[str, bool]]],
        caption_key: str,
        window: int | None,
        copies: RemoteShards | None,
    ) -> None:
        self.caption_key, self.window, self._copies = caption_key, window, copies
        self._needed: Needed = {"image": IMAGE, "caption": caption_members(caption_key)}
        self._extensions = tuple(name for names in self._needed.values() for name in names)
        self._opened: dict[int, _Opened | Fault] = {}
        self._files = TarFiles(window or OPEN_FILES)
        flat = [place for source in places for place in source]
        paths = [Path(place) for place, remote in flat if not remote]
        indexes = open_indexes(paths) if window is None else []
        local = iter([header for header, _ in indexes] if window is None else open_headers(paths))
        far = iter(copies.headers([place for place, remote in flat if remote]) if copies else [])
        self._shards = [
            _Shard(place, shown(place), remote, header, header.usable(self._needed))
            for place, remote in flat
            for header in [next(far if remote else local)]
        ]
        self._to_keep = self._shards
        self.faults = [Fault(shard.name, reason) for shard in self._shards for reason in shard.header.faults]
        if window is None:
            for number, (path, (_, table)) in enumerate(zip(paths, indexes, strict=True)):
                rows, lacks = usable_rows(table, self._needed)
                self.faults += [Fault(f"{path}:{key_of(table[row])}", lack) for row, lack in lacks]
                self._opened[number] = _Opened(path, table, rows)
        else:
            self.faults += [
                Fault(shard.name, reason)
                for shard in self._shards
                for reason in shard.header.missing(self._needed)
            ]
        self._ends = np.cumsum([shard.usable for shard in self._shards], dtype=np.int64)
        cuts = np.cumsum([0, *map(len, places)]).tolist()
        sources = [[shard.usable for shard in self._shards[a:b]] for a, b in pairwise(cuts)]
        self.layout = Layout(sources, [weight for _, weight in parts])
        self.samples, self.per_epoch = self.layout.total, self.layout.per_epoch
        self.sources = [
            SourceFacts(", ".join(specs), len(counts), sum(counts), weight)
            for (specs, weight), counts in zip(parts, sources, strict=True)
        ]
        if not self.samples:
            why = f": {self.faults[0]}" if self.faults else ""
            raise InputError(
                f"not one sample with an image and a caption in {self}{why}; give WebDataset tars"
            )

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
        """A digest of all that the order of an epoch depends on beside its seed.

        It stays the same where shards are copied to another place, and is the same in all processes of a run.
        """
        shards = [[_base(shard), shard.usable] for shard in self._shards]
        return digest_of(
            [shards, list(map(len, self.layout.sources)), list(self.layout.weights), self.window]
        )

    def read(self, i: int) -> Sample | Fault:
        """Read the image and the caption members of usable sample `i`, or say what is wrong with it or its shard.

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
            return Sample(key, name, self._files.read(opened.path, row, self._extensions))
        except (InputError, OSError) as error:
            return sample_fault(name, error)

    def keep_indexes(self) -> None:
        """Write the indexes of local shards beside them, once, where that folder can be written."""
        shards, self._to_keep = self._to_keep, []
        for shard in shards:
            path = Path(shard.place)
            if not shard.remote and shard.header.stamp and not read_header(index_files(path)[0], stamp(path)):
                write_index(index_files(path)[0], *open_index(path))

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
                opened = sample_fault(shard.name, error)
            while len(self._opened) >= (self.window or 1):
                self._opened.pop(next(iter(self._opened)))
        self._opened[number] = opened
        return opened


def _base(shard: _Shard) -> str:
    return shard.name.rpartition("/")[2]
