"""Pictures of evaluation sets after resize and crop, in files that every process of a machine maps into its memory.

What a set's source, the chosen pictures and the transform are the name of a file is made from: of a set that is looked
at again, by any model and in any process, nothing is left to do but to normalise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import PIL
import torchvision
from torch import Tensor

import diffclip
from diffclip.data.decoded import map_bytes
from diffclip.data.made_once import made_once
from diffclip.data.pictures import PixelTransform
from diffclip.data.sources import Source, digest_of
from diffclip.errors import InputError
from diffclip.files import write_atomically

_PIXELS = "pixels"


class KeptPictures:
    """Transformed pictures, kept in `folder` up to `limit` bytes of all sets together.

    A set with a broken picture is not kept, and one that the folder cannot take neither: they are read each time.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder.absolute(), limit
        self._not_kept: set[Path] = set()

    def find(
        self,
        source: Source,
        indices: Sequence[int],
        transform: PixelTransform,
        read: Callable[[], Iterator[Tensor | None]],
    ) -> Tensor | None:
        """The pictures `indices` of a source after `transform.pixels`, uint8 [n, 3, S, S]; None where they are not
        kept.

        Args:
            read: gives them in order, a batch [b, 3, S, S] at a time, None for one with a broken picture.
        """
        own = self.folder / _name(source, indices, transform)
        size, count = transform.image_size, len(indices)
        total = 3 * size * size * count

        def mapped() -> Tensor | None:
            file = own / _PIXELS
            there = file.is_file() and file.stat().st_size == total
            return map_bytes(file, total).view(count, 3, size, size) if there else None

        def make() -> Tensor | None:
            if self._used() + total > self.limit:
                return None
            try:
                with write_atomically(own / _PIXELS) as part, part.open("wb") as handle:
                    for images in read():
                        if images is None:
                            raise _BrokenError
                        handle.write(images.contiguous().numpy().data)
            except _BrokenError:
                return None
            return mapped()

        if own in self._not_kept:
            return None
        try:
            found = made_once(own, mapped, make)
        except InputError:
            # a cache that cannot be written costs the time again, nothing else
            found = None
        if found is None:
            self._not_kept.add(own)
        return found

    def _used(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob(f"*/{_PIXELS}"))


class _BrokenError(Exception):
    pass


def _name(source: Source, indices: Sequence[int], transform: PixelTransform) -> str:
    versions = [diffclip.__version__, torchvision.__version__, PIL.__version__]
    place = os.path.abspath(str(source))
    return digest_of([versions, place, source.identity(), list(map(int, indices)), transform.identity])[:20]
