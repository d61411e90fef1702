"""The training data: weighted sources of shards, local or remote, and any usable sample of them by number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclip.data.index import ShardIndex
from diffclip.data.index_files import Counts, Needed, read_index
from diffclip.data.indexing import counts_of, indexes_of
from diffclip.data.order import Layout
from diffclip.data.parts import Part, Place, parts_of, places_of, spec_of
from diffclip.data.samples import CAPTION_KEY, PICTURE, Fault, caption_members, sample_fault
from diffclip.data.shards import OPEN_FILES, TarFiles, usable_samples
from diffclip.data.sources import digest_of
from diffclip.errors import InputError
from diffclip.files import cache_folder

if TYPE_CHECKING:
    from diffclip.data.remote_index import RemoteShards

# How often a copy is fetched that another process removes before it is opened.
_ATTEMPTS = 3
# Shards that a process shuffles together where not all are at hand.
_WINDOW = 16


class SourceFacts(NamedTuple):
    """A source as it was found: what names it, its numbers of shards and of usable samples, its weight."""

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
    """A shard by its path or address, what it is called, and its usable samples."""

    place: str
    name: str
    remote: bool
    counts: Counts
    usable: int


class _Opened(NamedTuple):
    """A shard at hand: `usable` are the numbers of its usable samples."""

    path: Path
    samples: ShardIndex
    usable: NDArray[np.int64]


def open_corpus(
    train: Any,
    caption_key: str = CAPTION_KEY,
    window: int | None = None,
    cache: str | Path | None = None,
    cache_gb: float | None = None,
    timeout: float = 300.0,
) -> Corpus:
    """Find the shards of all sources and count their samples, from the indexes beside them where there are any.

    Args:
        train: a path or an address, a `Part` (or anything with its fields), a mapping with these keys; or several.
        caption_key: the key of `.json` that holds a caption or a list of them. Unless it is another than the
            usual, a sample's `.txt`, one caption a line, comes first.
        window: shards that a process shuffles together. None: all samples, or 16 shards where one is remote.
        cache: folder for copies of remote shards; None: in the user's cache folder.
        cache_gb: size of these copies in 10^9 bytes, a process; None: no more than is being read.
        timeout: seconds after which data that does not come is an error.

    Raises:
        InputError: shards are missing, or not a single sample is usable.
        DiffCLIPError: a disk or an address does not answer.
    """
    parts = parts_of(train)
    places = [places_of(part) for part in parts]
    copies = None
    if any(remote for source in places for _, remote in source):
        from diffclip.data.remote_index import RemoteShards

        limit = None if cache_gb is None else int(cache_gb * 1e9)
        copies = RemoteShards(Path(cache) if cache else cache_folder() / "shards", limit, timeout)
        window = window or _WINDOW
    return Corpus(parts, places, caption_key, window, copies, timeout)


class Corpus:
    """The usable samples, those with a picture and a caption, of weighted sources; numbered through all shards.

    Without a window the indexes of all shards are in memory, which forked data workers share; with one, only how many
    samples each shard has, and the indexes of the shards that are being read. An object may be forked or pickled to
    data workers; it is not for several threads at once. It is made by `open_corpus`.

    Attributes:
        samples: how many samples are usable.
        per_epoch: how many samples an epoch shows: over the sources, the sum of round(weight × samples).
        faults: what is skipped: broken shards, samples without a picture or a caption.
        sources: what was found, source by source.
        layout: the usable samples of each shard, and the weights.
        window: shards that a process shuffles together; None: all samples.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        places: Sequence[Sequence[Place]],
        caption_key: str,
        window: int | None,
        copies: RemoteShards | None,
        timeout: float,
    ) -> None:
        self.caption_key, self.window, self._copies = caption_key, window, copies
        self._needed: Needed = {"picture": PICTURE, "caption": caption_members(caption_key)}
        self._extensions = frozenset(name for names in self._needed.values() for name in names)
        self.faults: list[Fault] = []
        self._held: list[_Opened] = []
        self._recent: OrderedDict[int, _Opened | Fault] = OrderedDict()
        self._files = TarFiles(window or OPEN_FILES)
        flat = [place for source in places for place in source]
        self._shards = (
            self._count(flat, timeout) if window else self._hold([Path(path) for path, _ in flat], timeout)
        )
        self._ends = np.cumsum([shard.usable for shard in self._shards], dtype=np.int64)
        cuts = np.cumsum([0, *map(len, places)]).tolist()
        sources = [[shard.usable for shard in self._shards[a:b]] for a, b in pairwise(cuts)]
        self.layout = Layout(sources, [part.weight for part in parts])
        self.samples, self.per_epoch = self.layout.total, self.layout.per_epoch
        self.sources = [
            SourceFacts(spec_of(part), len(counts), sum(counts), part.weight)
            for part, counts in zip(parts, sources, strict=True)
        ]
        if not self.samples:
            why = f": {self.faults[0]}" if self.faults else ""
            raise InputError(
                f"not one sample with a picture and a caption in {self}{why}; give WebDataset tars"
            )

    @property
    def is_remote(self) -> bool:
        """Whether any shard is remote."""
        return self._copies is not None

    @property
    def places(self) -> list[str]:
        """The path or address of each shard."""
        return [shard.place for shard in self._shards]

    def __str__(self) -> str:
        more = f" and {len(self._shards) - 1} more shards" if len(self._shards) > 1 else ""
        return f"{self._shards[0].name}{more}"

    def identity(self) -> str:
        """A digest of the name, size and time of each shard."""
        return digest_of([[_base(shard), shard.counts.stamp] for shard in self._shards])

    def order_identity(self) -> str:
        """A digest of all that the order of an epoch depends on beside its seed.

        It stays the same where shards are copied to another place, and is the same in all processes of a run.
        """
        shards = [[_base(shard), shard.usable] for shard in self._shards]
        return digest_of(
            [shards, list(map(len, self.layout.sources)), list(self.layout.weights), self.window]
        )

    def read(self, i: int) -> Sample | Fault:
        """The picture and the caption members of usable sample `i`, or what is wrong with it or its shard.

        Raises:
            DiffCLIPError: a remote address sends nothing, or a connection is lost for good.
        """
        number = int(self._ends.searchsorted(i, side="right"))
        shard = self._shards[number]
        opened = self._open(number)
        if isinstance(opened, Fault):
            return opened
        place = i - int(self._ends[number]) + shard.usable
        if place >= len(opened.usable):
            return Fault(shard.name, "has changed since its samples were counted: start again")
        local = int(opened.usable[place])
        key = opened.samples.key(local)
        name = f"{shard.name}:{key}"
        members = opened.samples.members(local).items()
        try:
            return Sample(
                key, name, self._files.read(opened.path, [m for m in members if m[0] in self._extensions])
            )
        except (InputError, OSError) as error:
            return sample_fault(name, error)

    def ahead(self, shards: Sequence[int]) -> None:
        """Fetch what is remote of these shards, in this order, in the background; copies of others may go."""
        if self._copies is not None:
            self._copies.ahead(
                [self._shards[number].place for number in shards if self._shards[number].remote]
            )

    def close(self) -> None:
        """Stop fetching ahead."""
        if self._copies is not None:
            self._copies.close()

    def _hold(self, paths: Sequence[Path], timeout: float) -> list[_Shard]:
        shards, missing = [], []
        for path, (index, counts) in zip(paths, indexes_of(paths, timeout), strict=True):
            usable, faults = usable_samples(path, index, self._needed)
            self.faults += [Fault(str(path), reason) for reason in index.faults]
            missing += faults
            self._held.append(_Opened(path, index, usable))
            shards.append(_Shard(str(path), str(path), False, counts, len(usable)))
        self.faults += missing
        return shards

    def _count(self, places: Sequence[Place], timeout: float) -> list[_Shard]:
        local = counts_of([Path(place) for place, remote in places if not remote], timeout)
        far = self._copies.counts([place for place, remote in places if remote]) if self._copies else []
        kinds = {False: iter(local), True: iter(far)}
        shards = []
        for place, remote in places:
            counts = next(kinds[remote])
            name = _shown(place) if remote else place
            self.faults += [Fault(name, reason) for reason in (*counts.faults, *counts.missing(self._needed))]
            shards.append(_Shard(place, name, remote, counts, counts.usable(self._needed)))
        return shards

    def _open(self, number: int) -> _Opened | Fault:
        if self._held:
            return self._held[number]
        opened = self._recent.pop(number, None)
        if opened is None:
            shard = self._shards[number]
            try:
                opened = self._opened(shard)
            except (InputError, OSError) as error:
                opened = sample_fault(shard.name, error)
            while len(self._recent) >= (self.window or 1):
                self._recent.popitem(last=False)
        self._recent[number] = opened
        return opened

    def _opened(self, shard: _Shard) -> _Opened:
        if shard.remote and self._copies is not None:
            path, index = self._copy(shard.place, self._copies)
        else:
            path = Path(shard.place)
            index = read_index(path)
        if not len(index):
            raise InputError(f"{shard.name} {index.faults[0] if index.faults else 'has no samples'}")
        return _Opened(path, index, usable_samples(path, index, self._needed)[0])

    def _copy(self, address: str, copies: RemoteShards) -> tuple[Path, ShardIndex]:
        for _ in range(_ATTEMPTS):
            try:
                path, index = copies.open(address)
                self._files.open(path)
                return path, index
            except FileNotFoundError:
                # A process that does not read this shard has removed the copy to make room.
                continue
        raise InputError(f"{address} was removed time and again: raise data.cache_gb")


def _base(shard: _Shard) -> str:
    return shard.name.rpartition("/")[2]


def _shown(address: str) -> str:
    from diffclip.data.remote import shown

    return shown(address)
