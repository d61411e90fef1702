"""The two files of an index: vectors in one NumPy file, names, sizes and times in one JSON lines file beside it.

`images.jsonl` begins with a header, which says what the index is of and names the file of vectors. Each further line is
an image: `{"path": …, "size": …, "mtime": …}`, with `fault` where the file is not an image. The float16 vectors [N, D]
are those of the lines without a fault, in order. Both files are written whole, the vectors first and under a new name:
whoever reads the index finds the old pair or the new one.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diffclip.errors import InputError, explained
from diffclip.files import disk_errors, write_atomically

NAME = "images.jsonl"
_FORMAT = 2
_ABANDONED = 3600.0  # seconds after which a file that no index names was left by a process that was killed


@dataclass(frozen=True)
class About:
    """The folder and the model of an index: `model` is a digest, `label` the model's name for people."""

    folder: str
    model: str
    label: str
    width: int


@dataclass(frozen=True)
class ImageFile:
    """A file below the folder: size in bytes, time of change in ns, and why it is not an image ("" if it is)."""

    path: str
    size: int
    mtime: int
    fault: str = ""


@dataclass(frozen=True)
class Contents:
    """The files that an index knows and their vectors float16 [N, D]; row i belongs to `found[i]`.

    `name` is the file of the vectors, "" before the first is written.
    """

    found: list[ImageFile]
    vectors: NDArray[np.float16]
    faulty: list[ImageFile] = field(default_factory=list)
    name: str = ""


def read(place: Path, about: About) -> Contents:
    """Read the index in the folder `place`; empty where there is none. Nothing is written.

    Raises:
        InputError: the folder holds something else, the index of another folder or model, or a damaged one.
    """
    if not (place / NAME).is_file():
        with disk_errors(place):
            if place.exists() and not all(map(_is_part, place.iterdir())):
                raise InputError(f"{place} holds other files: choose a new or an empty folder for the index")
        return Contents([], np.empty((0, about.width), np.float16))
    with explained(f"the index {place} is damaged", "remove that folder; the next search makes it again"):
        try:
            return _read(place, about)
        except FileNotFoundError:  # another process has replaced the vectors meanwhile
            return _read(place, about)


def _read(place: Path, about: About) -> Contents:
    with (place / NAME).open(encoding="utf-8") as lines:
        header = json.loads(next(lines, "{}"))
        if header.get("format") != _FORMAT:
            raise InputError(
                f"{place} was made by another version of this program: remove it; the next search makes "
                "it again"
            )
        for of, wanted in (("folder", about.folder), ("model", about.model)):
            if header[of] != wanted:
                was = header["label" if of == "model" else "folder"]
                raise InputError(f"{place} is the index of another {of} ({was}): choose another place")
        files = [ImageFile(**json.loads(line)) for line in lines]
    vectors = np.load(place / header["vectors"], mmap_mode="r")
    found = [file for file in files if not file.fault]
    if vectors.dtype != np.float16 or vectors.shape != (len(found), about.width):
        raise ValueError(f"{len(found)} images, but vectors {list(vectors.shape)} of {vectors.dtype}")
    return Contents(found, vectors, [file for file in files if file.fault], header["vectors"])


def write(place: Path, about: About, contents: Contents) -> Contents:
    """Write an index to the folder `place`, whole or not at all; then remove the file of vectors that it replaces.

    Raises:
        InputError: it cannot be written.
    """
    name = f"vectors-{uuid.uuid4().hex[:8]}.npy"
    with write_atomically(place / name) as temporary, temporary.open("wb") as handle:
        np.save(handle, contents.vectors)
    with write_atomically(place / NAME) as temporary, temporary.open("w", encoding="utf-8") as handle:
        handle.write(json.dumps({"format": _FORMAT, **vars(about), "vectors": name}) + "\n")
        for image in (*contents.found, *contents.faulty):
            fields = {key: value for key, value in vars(image).items() if value != ""}
            handle.write(json.dumps(fields) + "\n")
    with disk_errors(place):
        for file in place.iterdir():
            is_old = _is_part(file) and time.time() - file.stat().st_mtime > _ABANDONED
            if file.name == contents.name or (is_old and file.name != name):
                file.unlink(missing_ok=True)
    return replace(contents, name=name)


def _is_part(file: Path) -> bool:
    """Tell whether a first save that was killed may have left the file."""
    return file.suffix == ".tmp" or file.match("vectors-*.npy")
