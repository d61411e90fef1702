"""The training data: weighted sources of shards, on disk or at addresses; each usable sample is read by its number."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclip.data.captions import CAPTION_KEY, caption_members, captions_of
from diffclip.data.images import IMAGE, image_member, read_pixels
from diffclip.data.index import (
    Header,
    Needed,
    Tar,
    index_files,
    open_tar,
    open_tars,
    read_index,
    stamp,
    write_index,
)
from diffclip.data.order import Layout
from diffclip.data.remote import RemoteShards, expand_remote, is_remote
from diffclip.data.shards import expand_shards
from diffclip.errors import Fault, InputError, hide_secrets, sample_fault
from diffclip.files import cache_folder, digest_of

if TYPE_CHECKING:
    from torch import Tensor

# Number of shards that a process shuffles together if some shards are remote.
_WINDOW = 16
# Number of decoded images after which the memory for all images is estimated.
_ESTIMATE_AFTER = 100


class Sample(NamedTuple):
    """A sample: `name` is its shard and key, for messages; `pixels` are uint8 [3, H, W]."""

    key: str
    name: str
    captions: list[str]
    pixels: Tensor


class _Shard(NamedTuple):
    """A shard by its path or address, its name for messages, and the number of its usable samples."""

    place: str
    name: str
    header: Header
    usable: int


class Corpus:
    """The usable samples (with an image and a caption) of weighted sources, numbered across all shards.

    Without a window, the indexes of all shards are in memory, and forked data workers share them. With a window, only
    the header of each shard and the indexes of the shards that are being read are in memory. A corpus may be forked
    to data workers, or pickled before its first read. Several threads must not use it at once.

    Args:
        train: a path or an address; an object with `shards` and `weight`, as a recipe has; or a list of these.
        caption_key: the key of `.json` that holds a caption or a list of captions. With the default key,
            a sample's `.txt` (one caption per line) comes first. With another key, `.txt` is not read.
        window: number of shards that a process shuffles together. None: all samples, or 16 shards if one is remote.
        cache: folder for copies of remote shards; None: in the user's cache folder.
        cache_gb: limit for these copies in 10^9 bytes; the least recently used are removed. None: no limit.

    Attributes:
        samples: how many samples are usable.
        per_epoch: how many samples an epoch shows: over the sources, the sum of round(weight × samples).
        faults: the skipped broken shards, and samples without an image or a caption.
        sources: for each source its name (`spec`), its numbers of `shards` and of usable `samples`, its `weight`.
        layout: the usable samples of each shard, and the weights.

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
        sources = [_find_source(source) for source in (train if isinstance(train, list) else [train])]
        places = [place for _, _, shards in sources for place in shards]
        if not places:
            raise InputError("no shards given: name .tar files, a folder of them or a range '{0..9}.tar'")
        remote = [place for place in places if is_remote(place)]
        self.is_remote = bool(remote)
        self._caption_key, self.window = caption_key, window or (_WINDOW if remote else None)
        self._needed: Needed = {"image": IMAGE, "caption": caption_members(caption_key)}
        self._extensions = [name for names in self._needed.values() for name in names]
        self._copies = RemoteShards(
            Path(cache).expanduser() if cache else cache_folder() / "shards", cache_gb
        )
        tars = open_tars((Path(place) for place in places if not is_remote(place)), self.window is None)
        headers = {str(path): tar.header for path, tar in tars.items()} | self._copies.headers(remote)
        counts = {place: header.usable(self._needed) for place, header in headers.items()}
        self._shards = [_Shard(place, hide_secrets(place), headers[place], counts[place]) for place in places]
        self.faults = [Fault(shard.name, reason) for shard in self._shards for reason in shard.header.faults]
        # open shards by number, each with the rows of its usable samples
        self._opened: dict[int, tuple[Tar, NDArray[np.int64]]] = {}
        self._decoded: list[Sample | Fault] = []
        for number, shard in enumerate(self._shards):
            if self.window is None:
                tar = tars[Path(shard.place)]
                rows, faults = tar.usable(self._needed)
                self._opened[number] = tar, rows
                self.faults += faults
            elif lacking := sum(shard.header.samples.values()) - shard.usable:
                self.faults.append(
                    Fault(shard.name, f"holds {lacking} samples without an image or a caption")
                )
        self._bounds = np.cumsum([0, *(shard.usable for shard in self._shards)])
        usable = [[counts[place] for place in shards] for _, _, shards in sources]
        self.layout = Layout(usable, [weight for _, weight, _ in sources])
        self.samples, self.per_epoch = self.layout.total, self.layout.per_epoch
        self.sources: list[dict[str, Any]] = [
            {"spec": ", ".join(specs), "shards": len(sizes), "samples": sum(sizes), "weight": weight}
            for (specs, weight, _), sizes in zip(sources, usable, strict=True)
        ]
        if not self.samples:
            fault = f" (first: {self.faults[0]})" if self.faults else ""
            raise InputError(
                f"no sample in {self} has an image and a caption{fault}: to train, each sample needs an image and a "
                "caption (.txt or .json); sets with classes (.cls) are for `diffclip evaluate`"
            )

    def __str__(self) -> str:
        rest = f" and {len(self._shards) - 1} more shards" if len(self._shards) > 1 else ""
        return f"{self._shards[0].name}{rest}"

    def identity(self) -> str:
        """A digest of the name, size and time of each shard."""
        return digest_of([[shard.name.rpartition("/")[2], shard.header.stamp] for shard in self._shards])

    def order_identity(self) -> str:
        """A digest of all that decides the order of an epoch, except the seed. The shards' folder does not count."""
        shards = [[shard.name.rpartition("/")[2], shard.usable] for shard in self._shards]
        sizes = [len(source) for source in self.layout.sources]
        return digest_of([shards, sizes, list(self.layout.weights), self.window])

    def read(self, i: int) -> Sample | Fault:
        """Read and decode usable sample `i`, or return the fault of the sample or of its shard. `read`, `decode` and
        `fetch` raise `DiffCLIPError` if a remote shard cannot be copied."""
        if self._decoded:
            return self._decoded[i]
        number, position = self._locate(i)
        shard, (tar, rows) = self._shards[number], self._open(number)
        if position >= len(rows):
            changed = "has changed since its samples were counted: start again"
            return Fault(shard.name, next(iter(tar.header.faults), changed))
        key = tar.key(rows[position])
        name = f"{shard.name}:{key}"
        try:
            members = tar.members(rows[position], self._extensions)
            pixels = read_pixels(image_member(members, name), name)
        except (InputError, OSError) as error:
            return sample_fault(name, error)
        try:
            return Sample(key, name, captions_of(members, name, self._caption_key), pixels)
        except InputError as error:
            return sample_fault(name, error, "caption")

    def name(self, i: int) -> str:
        """Return the shard and key of usable sample `i`, for messages, without reading its image."""
        number, position = self._locate(i)
        tar, rows = self._open(number)
        return f"{self._shards[number].name}:{tar.key(rows[position])}"

    def decode(self) -> None:
        """Decode all samples once and keep them in memory, which forked data workers share. Raise `InputError` if they
        need more memory than the machine has."""
        limit, size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 0
        decoded = []
        for i in range(self.samples):
            decoded.append(sample := self.read(i))
            size += sample.pixels.nbytes if isinstance(sample, Sample) else 0
            if i + 1 >= _ESTIMATE_AFTER and (needed := size / (i + 1) * self.samples) > limit:
                raise InputError(
                    f"{self.samples} images take {needed / 1e9:.3g} GB of memory, with {limit / 1e9:.3g} GB: shrink "
                    "them with diffclip data make-shards --edge, or data.memory=false"
                )
        self._decoded = decoded

    def keep_indexes(self) -> None:
        """Write the indexes of local shards beside them, if that folder is writable."""
        for shard in self._shards:
            path = Path(shard.place)
            file = index_files(path)[0]
            if path.is_file() and not read_index(file, stamp(path), tables=False):
                tar = open_tar(path)
                write_index(file, tar.header, tar.table)

    def fetch(self, number: int) -> None:
        """Copy a shard to the cache if it is remote and its samples are not in memory."""
        if is_remote(self._shards[number].place) and not self._decoded:
            self._copies.copy(self._shards[number].place)

    def _locate(self, i: int) -> tuple[int, int]:
        """Find the shard of usable sample `i`, and the position of the sample among the shard's usable samples."""
        number = int(self._bounds.searchsorted(i, side="right")) - 1
        return number, i - int(self._bounds[number])

    def _open(self, number: int) -> tuple[Tar, NDArray[np.int64]]:
        """Return a shard; if it is not open, open it in place of the least recently used one."""
        opened = self._opened.pop(number, None)
        if opened is None:
            place = self._shards[number].place
            tar = open_tar(self._copies.copy(place) if is_remote(place) else Path(place))
            with suppress(OSError):  # a shard that is gone or unreadable has faults
                tar = tar._replace(file=tar.path.open("rb", buffering=0))
            opened = tar, tar.usable(self._needed)[0]
            while len(self._opened) >= (self.window or 1):
                self._opened.pop(next(iter(self._opened)))
        self._opened[number] = opened
        return opened


def _find_source(source: Any) -> tuple[list[str], float, list[str]]:
    """Find the names of a source's shards, its weight, and the path or address of each shard."""
    shards, weight = (source.shards, source.weight) if hasattr(source, "shards") else (source, 1.0)
    specs = [str(spec) for spec in (shards if isinstance(shards, list) else [shards])]
    expanded = [expand_remote(spec) if is_remote(spec) else map(str, expand_shards(spec)) for spec in specs]
    return specs, weight, [place for places in expanded for place in places]
