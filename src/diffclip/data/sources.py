"""Sources of the images of a set: image files, a data set of torchvision's kind, or shards (`shards.py`)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from diffclip.data.images import read_image, to_rgb
from diffclip.errors import InputError


class Source(Protocol):
    """Images by number, each with a name for people and a key. It may be pickled to data workers."""

    def __len__(self) -> int: ...

    def __str__(self) -> str: ...

    def key(self, i: int) -> str:
        """Image `i` within the source, wherever that lies."""
        ...

    def name(self, i: int) -> str:
        """Image `i` for people: where to find it."""
        ...

    def image(self, i: int) -> Image.Image:
        """Read image `i` as RGB.

        Raises:
            InputError: it is broken or missing.
            OSError: it cannot be read.
        """
        ...

    def identity(self) -> str:
        """A digest of the names, sizes and times of the files."""
        ...


class FileSource:
    """Image files below one folder, read as `read_image` does."""

    def __init__(self, folder: Path, files: Sequence[str]) -> None:
        """`files` are paths relative to `folder`, with forward slashes."""
        self.folder, self.files = folder, list(files)

    def __len__(self) -> int:
        return len(self.files)

    def __str__(self) -> str:
        return str(self.folder)

    def key(self, i: int) -> str:
        return self.files[i]

    def name(self, i: int) -> str:
        return str(self.folder / self.files[i])

    def image(self, i: int) -> Image.Image:
        return read_image(self.folder / self.files[i])

    def identity(self) -> str:
        return self._identity

    @cached_property
    def _identity(self) -> str:
        return stamp_of((file, self.folder / file) for file in self.files)


class MemorySource:
    """The images of another source, decoded when they are first read and kept in memory."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._images: dict[int, Image.Image] = {}

    def __len__(self) -> int:
        return len(self.source)

    def __str__(self) -> str:
        return str(self.source)

    def key(self, i: int) -> str:
        return self.source.key(i)

    def name(self, i: int) -> str:
        return self.source.name(i)

    def image(self, i: int) -> Image.Image:
        if i not in self._images:
            self._images[i] = self.source.image(i)
        return self._images[i]

    def identity(self) -> str:
        return self.source.identity()


class DatasetSource:
    """A map-style data set whose items are a PIL image and something else, as torchvision's without a transform.

    Images are as the data set gives them, in RGB. They are named by its list of files where it keeps one, else by
    their numbers.
    """

    def __init__(self, dataset: Any, folder: Path) -> None:
        """`folder` holds all the files that `dataset` reads."""
        self.dataset, self.folder = dataset, folder
        files = next((getattr(dataset, name) for name in _FILES if hasattr(dataset, name)), None)
        self._keys = None if files is None else [os.path.relpath(file, folder) for file in files]

    def __len__(self) -> int:
        return len(self.dataset)

    def __str__(self) -> str:
        return str(self.folder)

    def key(self, i: int) -> str:
        return f"{i:07d}" if self._keys is None else self._keys[i]

    def name(self, i: int) -> str:
        return f"{self.folder}:{i}" if self._keys is None else str(self.folder / self._keys[i])

    def image(self, i: int) -> Image.Image:
        try:
            return to_rgb(self.dataset[i][0])
        # What Pillow's readers raise for a damaged file is nearly anything.
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{self.name(i)} is missing, cut short or broken ({reason})") from error

    def identity(self) -> str:
        return self._identity

    @cached_property
    def _identity(self) -> str:
        files = sorted(Path(parent, name) for parent, _, names in os.walk(self.folder) for name in names)
        return stamp_of((file.relative_to(self.folder).as_posix(), file) for file in files)


# How torchvision's data sets call the list of their files, and that of their labels (`y`: Caltech-101).
_FILES = ("_image_files", "_images")
_LABELS = ("targets", "_labels", "labels", "y")


def labels_of(dataset: Any) -> list[int]:
    """The label of each item of a map-style data set: from the list that it keeps, else read item by item."""
    kept = next((getattr(dataset, name) for name in _LABELS if hasattr(dataset, name)), None)
    if kept is None:
        return [int(dataset[i][1]) for i in range(len(dataset))]
    change = getattr(dataset, "target_transform", None) or int
    return [int(change(label)) for label in kept]


def stamp_of(files: Iterable[tuple[str, Path]]) -> str:
    """A digest of the name, size and time of each file; one that is missing counts as such."""
    return digest_of([[name, *_size_and_time(file)] for name, file in files])


def digest_of(value: object) -> str:
    """A hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _size_and_time(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns
