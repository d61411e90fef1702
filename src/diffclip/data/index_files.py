"""Indexes of shards as files: in `diffclip-index` beside the shards, or in the user's cache folder.

A file is believed only while its shard has the size and the time that it had when it was scanned.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from diffclip.data.index import ShardIndex, scan, stamp, unreadable
from diffclip.errors import InputError
from diffclip.files import cache_folder, write_atomically, write_text

INDEX_FOLDER = "diffclip-index"
COUNTS_FILE = "counts.json"

_FORMAT = 1
# A shard with fewer members is scanned again as fast as its index is read.
_WORTH_KEEPING = 100
# So many faults of one shard are told with its counts; its index has them all.
_MOST_FAULTS = 20

Needed = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Counts:
    """What a shard holds, in numbers: for each set of extensions, how many samples have just these, not empty."""

    stamp: str
    samples: Mapping[tuple[str, ...], int]
    faults: tuple[str, ...]

    def usable(self, needed: Needed) -> int:
        """How many samples have a member for each of `needed` (what it is called → its extensions)."""
        return sum(count for held, count in self.samples.items() if not _missing(held, needed))

    def missing(self, needed: Needed) -> list[str]:
        """What is said of the samples that lack one of `needed`."""
        counts: dict[str, int] = {}
        for held, count in self.samples.items():
            if lack := _missing(held, needed):
                counts[lack] = counts.get(lack, 0) + count
        return [f"holds {count} samples that have {lack}" for lack, count in sorted(counts.items())]


def _missing(held: Sequence[str], needed: Needed) -> str:
    return " and ".join(f"no {what}" for what, names in needed.items() if not set(names) & set(held))


def count(index: ShardIndex, mark: str) -> Counts:
    """The counts of the shard that `index` describes; `mark` is its stamp."""
    faults, more = index.faults[:_MOST_FAULTS], len(index.faults) - _MOST_FAULTS
    if more > 0:
        faults += (f"has {more} more such faults",)
    return Counts(mark, index.sets_of_extensions(), faults)


def index_folders(folder: Path) -> tuple[Path, Path]:
    """Where the indexes of the shards in `folder` may lie: beside them, and in the user's cache folder."""
    return folder / INDEX_FOLDER, cached_folder(os.fsencode(folder.resolve()))


def cached_folder(place: bytes) -> Path:
    """The folder in the user's cache for the indexes of the shards at `place`."""
    return cache_folder() / "indexes" / hashlib.sha256(place).hexdigest()[:20]


def read_index(path: Path) -> ShardIndex:
    """The index of the shard at `path`; a new one is kept in the user's cache, never beside the shard.

    A broken shard gives what is whole in it, with `faults`; so does one that cannot be opened.
    """
    try:
        mark, folders = stamp(path), index_folders(path.parent)
        index = load_index(folders, path.name, mark)
        if index is None:
            index = scan(path)
            keep_index(folders[1:], path.name, mark, index)
        return index
    except OSError as error:
        return unreadable(error)


_COLUMNS = ("member_extensions", "blocks", "sizes", "first", "key_text", "key_ends")
_TEXTS = ("extensions", "faults")


def load_index(folders: Sequence[Path], name: str, mark: str) -> ShardIndex | None:
    """The index of the shard `name` with the stamp `mark`, from the first of `folders` that has it."""
    for folder in folders:
        try:
            with (folder / f"{name}.npz").open("rb") as file:
                index = parse_index(file, mark)
        except OSError:
            continue
        if index is not None:
            return index
    return None


def parse_index(file: IO[bytes], mark: str) -> ShardIndex | None:
    """The index in a file, or None if it is damaged or of a shard with another stamp."""
    try:
        with np.load(file, allow_pickle=False) as data:
            if str(data["stamp"]) != f"{_FORMAT} {mark}":
                return None
            fields: dict[str, Any] = {column: data[column] for column in _COLUMNS}
            fields |= {text: tuple(map(str, data[text])) for text in _TEXTS}
            return ShardIndex(**fields)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def keep_index(folders: Sequence[Path], name: str, mark: str, index: ShardIndex) -> None:
    """Write the index to the first of `folders` that can be written. If none can, the next reader scans again."""
    if len(index.blocks) < _WORTH_KEEPING:
        return
    fields: dict[str, Any] = {column: getattr(index, column) for column in _COLUMNS}
    fields |= {text: np.array(getattr(index, text), dtype=np.str_) for text in _TEXTS}
    for folder in folders:
        try:
            with write_atomically(folder / f"{name}.npz") as temporary, temporary.open("wb") as handle:
                np.savez(handle, stamp=np.array(f"{_FORMAT} {mark}"), **fields)
            return
        except (InputError, OSError):
            continue


def load_counts(folder: Path) -> dict[str, Counts]:
    """The counts kept in `folder`, by the name of the shard."""
    try:
        return parse_counts((folder / COUNTS_FILE).read_bytes())
    except OSError:
        return {}


def parse_counts(content: bytes) -> dict[str, Counts]:
    """What a file of counts says, by the name of the shard; nothing if it is damaged or of another version."""
    try:
        data = json.loads(content)
        if data["format"] != _FORMAT:
            return {}
        return {
            name: Counts(
                str(shard["stamp"]),
                {tuple(map(str, held)): int(number) for held, number in shard["samples"]},
                tuple(map(str, shard["faults"])),
            )
            for name, shard in data["shards"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def keep_counts(folders: Sequence[Path], counts: Mapping[str, Counts]) -> None:
    """Add `counts` to those in the first of `folders` that can be written, if any can."""
    for folder in folders:
        shards = {
            name: {"stamp": one.stamp, "samples": list(one.samples.items()), "faults": one.faults}
            for name, one in sorted({**load_counts(folder), **counts}.items())
        }
        try:
            write_text(folder / COUNTS_FILE, json.dumps({"format": _FORMAT, "shards": shards}))
            return
        except (InputError, OSError, UnicodeEncodeError):
            continue
