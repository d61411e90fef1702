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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diffclip.errors import InputError
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
    """The files that an index knows and their vectors float16 [N, D]; row i belongs to `found[i]`."""

    found: list[ImageFile]
    vectors: NDArray[np.float16]
    faulty: list[ImageFile] = field(default_factory=list)


def empty(width: int) -> Contents:
    return Contents([], np.empty((0, width), np.float16))


def read(place: Path, about: About) -> Contents:
    """Read the index in the folder `place`; empty where there is none. Nothing is written.

    Raises:
        InputError: the folder holds something else, the index of another folder or model, or a damaged one.
    """
    with disk_errors(place):
        # a first save that was killed leaves only files of these names
        if not place.exists() or all(
            file.suffix == ".tmp" or file.match("vectors-*.npy") for file in place.iterdir()
        ):
            return empty(about.width)
        if not (place / NAME).is_file():
            raise InputError(f"{place} holds other files: choose a new or an empty folder for the index")
    for last in (False, True):
        try:
            return _read(place, about)
        except FileNotFoundError as error:
            # another process may have replaced the pair between the two reads
            if last:
                raise _damaged(place, f"{error.filename} is missing") from error
        except InputError:
            raise
        except OSError as error:
            raise InputError(f"cannot read the index {place}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(place, " ".join(str(error).split())) from error
    raise AssertionError("not reached")


def _read(place: Path, about: About) -> Contents:
    with (place / NAME).open(encoding="utf-8") as lines:
        header = json.loads(next(lines, "{}"))
        _check_header(place, header, about)
        files = [ImageFile(**json.loads(line)) for line in lines]
    vectors = np.load(place / header["vectors"], mmap_mode="r")
    found = [file for file in files if not file.fault]
    if vectors.dtype != np.float16 or vectors.shape != (len(found), about.width):
        raise ValueError(f"{len(found)} images, but vectors {list(vectors.shape)} of {vectors.dtype}")
    return Contents(found, vectors, [file for file in files if file.fault])


def _check_header(place: Path, header: dict[str, object], about: About) -> None:
    if header.get("format") != _FORMAT:
        raise InputError(f"{place} was made by another version of this program: remove it, it is made anew")
    if header["folder"] != about.folder:
        raise InputError(
            f"{place} is the index of {header['folder']}: choose another place for that of {about.folder}"
        )
    if header["model"] != about.model:
        raise InputError(f"{place} was made with another model ({header['label']}): choose another place")


def write(place: Path, about: About, contents: Contents) -> None:
    """Write an index to the folder `place`, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    name, replaced = f"vectors-{uuid.uuid4().hex[:8]}.npy", _vectors_of(place)
    with write_atomically(place / name) as temporary, temporary.open("wb") as handle:
        np.save(handle, contents.vectors)
    with write_atomically(place / NAME) as temporary, temporary.open("w", encoding="utf-8") as handle:
        handle.writelines(f"{json.dumps(line)}\n" for line in _lines(about, name, contents))
    with disk_errors(place):
        for file in place.iterdir():
            old = file.suffix in (".npy", ".tmp") and time.time() - file.stat().st_mtime > _ABANDONED
            if file.name == replaced or (old and file.name != name):
                file.unlink(missing_ok=True)


def _vectors_of(place: Path) -> str | None:
    """The file of vectors that the index in `place` names, None where there is no index that can be read."""
    try:
        with (place / NAME).open(encoding="utf-8") as lines:
            return str(json.loads(next(lines))["vectors"])
    except (OSError, ValueError, KeyError, StopIteration):
        return None


def _lines(about: About, vectors: str, contents: Contents) -> Iterator[dict[str, object]]:
    yield {"format": _FORMAT, **vars(about), "vectors": vectors}
    for file in [*contents.found, *contents.faulty]:
        yield {name: value for name, value in vars(file).items() if value != ""}


def _damaged(place: Path, reason: str) -> InputError:
    return InputError(f"the index {place} is damaged ({reason}): remove that folder, it is made anew")
