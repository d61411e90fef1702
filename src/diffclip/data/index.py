"""Where each sample of a tar shard lies: one scan of its headers, kept in the user's cache folder.

Members are grouped as WebDataset does: the key is the path up to the first dot of the base name, the
extension is the rest in lower case, and neighbours of one key are a sample.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import zipfile
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclip.errors import InputError
from diffclip.files import cache_folder, write_atomically

_BLOCK = 512
_FORMAT = 1
# A shard with fewer members is scanned again faster than a cache file is worth keeping.
_WORTH_KEEPING = 500
_KEY_AND_EXTENSION = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_METADATA = re.compile(r"__[^/]*__($|/)")


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one shard, about 30 bytes each and 12 for each of their members.

    Sample i owns the members `first[i]` to `first[i + 1]`, and the bytes `key_ends[i]` to `key_ends[i + 1]`
    of `key_text`. Member m starts at byte 512 × `blocks[m]` and is `sizes[m]` bytes long.
    """

    extensions: tuple[str, ...]
    member_extensions: NDArray[np.uint32]
    blocks: NDArray[np.uint32]
    sizes: NDArray[np.uint32]
    first: NDArray[np.uint32]
    key_text: NDArray[np.uint8]
    key_ends: NDArray[np.uint32]
    faults: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.first) - 1

    def key(self, i: int) -> str:
        text = self.key_text[self.key_ends[i] : self.key_ends[i + 1]].tobytes()
        return text.decode("utf-8", "surrogateescape")

    def members(self, i: int) -> dict[str, tuple[int, int]]:
        """Extension → (offset, size), both in bytes."""
        return {
            self.extensions[self.member_extensions[m]]: (int(self.blocks[m]) * _BLOCK, int(self.sizes[m]))
            for m in range(self.first[i], self.first[i + 1])
        }

    def has_any(self, extensions: tuple[str, ...]) -> NDArray[np.bool_]:
        """[samples]: whether a sample has a member that is not empty under one of `extensions`."""
        if not len(self):
            return np.zeros(0, dtype=bool)
        wanted = np.array([extension in extensions for extension in self.extensions])
        held: NDArray[np.bool_] = wanted[self.member_extensions] & (self.sizes > 0)
        return np.logical_or.reduceat(held, self.first[:-1])


def read_index(path: Path) -> ShardIndex:
    """The index of the shard at `path`, from the cache while the file's size and time are as they were.

    A broken shard gives what is whole in it, with `faults`; so does one that cannot be opened.
    """
    try:
        status = path.stat()
        stamp = f"{_FORMAT} {status.st_size} {status.st_mtime_ns}"
        digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:20]
        kept = cache_folder() / "indexes" / f"{digest}.npz"
        index = _load(kept, stamp)
        if index is None:
            index = scan(path)
            if len(index.blocks) >= _WORTH_KEEPING:
                _keep(kept, stamp, index)
        return index
    except OSError as error:
        return _Builder().build(f"cannot be read ({error.strerror or error})")


def scan(path: Path) -> ShardIndex:
    """Read the headers of the tar at `path`, seeking over the contents.

    Raises:
        OSError: the file cannot be opened or read.
    """
    builder = _Builder()
    with path.open("rb") as handle:
        length = os.fstat(handle.fileno()).st_size
        if not length:
            return builder.build("is empty (0 bytes)")
        if handle.read(2) == b"\x1f\x8b":
            return builder.build(
                "is compressed, which leaves no way to single samples: unpack it with gunzip"
            )
        handle.seek(0)
        try:
            tar: Any = tarfile.open(fileobj=handle, mode="r:")  # noqa: SIM115
        except tarfile.ReadError:
            return builder.build("is not a tar")
        whole = _add_members(builder, tar, length)
        handle.seek(tar.offset)
        mark = handle.read(_BLOCK)
    if not whole or len(mark) < _BLOCK:
        return builder.build(f"is cut short, {len(builder)} samples are left")
    if mark.strip(b"\0"):
        return builder.build(f"is broken at byte {tar.offset}, {len(builder)} samples before it are left")
    return builder.build()


def _add_members(builder: _Builder, tar: Any, length: int) -> bool:
    """Add what is whole in a tar of `length` bytes; whether its last member was."""
    try:
        while (member := tar.next()) is not None:
            # The archive would otherwise keep every header it has seen.
            tar.members.clear()
            if member.offset_data + member.size > length:
                return False
            if member.isreg() and not member.issparse():
                builder.add(member)
    except tarfile.ReadError as error:
        return "end of data" not in str(error)
    # A damaged field of a header; the reader then stands at its byte.
    except (tarfile.TarError, ValueError, OverflowError, IndexError):
        return True
    return True


class _Builder:
    def __init__(self) -> None:
        self._faults: list[str] = []
        self._extensions: dict[str, int] = {}
        self._member_extensions, self._blocks, self._sizes = array("I"), array("I"), array("I")
        self._first, self._key_ends = array("I"), array("I", [0])
        self._key_text = bytearray()
        self._key: str | None = None
        self._held: set[int] = set()

    def __len__(self) -> int:
        return len(self._first)

    def add(self, member: tarfile.TarInfo) -> None:
        match = _KEY_AND_EXTENSION.match(member.name)
        if match is None or _METADATA.match(member.name):
            return
        if member.size >= 1 << 32:
            self._faults.append(
                f"holds {member.name} of {member.size} bytes, too large for a sample: skipped"
            )
            return
        key, extension = match[1], match[2].lower()
        number = self._extensions.setdefault(extension, len(self._extensions))
        if key != self._key:
            self._key, self._held = key, set()
            self._first.append(len(self._blocks))
            self._key_text += key.encode("utf-8", "surrogateescape")
            self._key_ends.append(len(self._key_text))
        elif number in self._held:
            self._faults.append(f"holds {member.name} twice: the first is used")
            return
        self._held.add(number)
        self._member_extensions.append(number)
        self._blocks.append(member.offset_data // _BLOCK)
        self._sizes.append(member.size)

    def build(self, *faults: str) -> ShardIndex:
        self._first.append(len(self._blocks))
        return ShardIndex(
            tuple(self._extensions),
            np.array(self._member_extensions, dtype=np.uint32),
            np.array(self._blocks, dtype=np.uint32),
            np.array(self._sizes, dtype=np.uint32),
            np.array(self._first, dtype=np.uint32),
            np.frombuffer(bytes(self._key_text), dtype=np.uint8),
            np.array(self._key_ends, dtype=np.uint32),
            (*self._faults, *faults),
        )


_COLUMNS = ("member_extensions", "blocks", "sizes", "first", "key_text", "key_ends")
_TEXTS = ("extensions", "faults")


def _load(kept: Path, stamp: str) -> ShardIndex | None:
    try:
        with np.load(kept, allow_pickle=False) as data:
            if str(data["stamp"]) != stamp:
                return None
            fields: dict[str, Any] = {name: data[name] for name in _COLUMNS}
            fields |= {name: tuple(map(str, data[name])) for name in _TEXTS}
            return ShardIndex(**fields)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        # Nothing kept, or a damaged file: the shard itself is the authority.
        return None


def _keep(kept: Path, stamp: str, index: ShardIndex) -> None:
    fields: dict[str, Any] = {name: getattr(index, name) for name in _COLUMNS}
    fields |= {name: np.array(getattr(index, name), dtype=np.str_) for name in _TEXTS}
    try:
        with write_atomically(kept) as temporary, temporary.open("wb") as handle:
            np.savez(handle, stamp=np.array(stamp), **fields)
    except (InputError, OSError):
        # A cache that cannot be written costs a scan the next time, nothing else.
        return
