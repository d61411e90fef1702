"""Where each sample of a tar shard lies, from one scan of its headers.

Members are grouped as WebDataset does: the key is the path up to the first dot of the base name, the
extension is the rest in lower case, and neighbours of one key are a sample.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import tarfile
from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 512
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
        start, end = self.first[i : i + 2].tolist()
        columns = (self.member_extensions, self.blocks, self.sizes)
        members = zip(*(column[start:end].tolist() for column in columns), strict=True)
        return {self.extensions[number]: (block * _BLOCK, size) for number, block, size in members}

    def has_any(self, extensions: tuple[str, ...]) -> NDArray[np.bool_]:
        """[samples]: whether a sample has a member that is not empty under one of `extensions`."""
        if not len(self):
            return np.zeros(0, dtype=bool)
        wanted = np.array([extension in extensions for extension in self.extensions])
        held: NDArray[np.bool_] = wanted[self.member_extensions] & (self.sizes > 0)
        return np.logical_or.reduceat(held, self.first[:-1])

    def sets_of_extensions(self) -> dict[tuple[str, ...], int]:
        """How many samples hold, not empty, exactly the members of each set of extensions."""
        if not len(self):
            return {}
        bits = np.array([1 << number for number in range(len(self.extensions))], dtype=object)
        held = np.where(self.sizes > 0, bits[self.member_extensions], 0)
        found = Counter(np.bitwise_or.reduceat(held, self.first[:-1].astype(np.intp)).tolist())
        return {
            tuple(
                sorted(name for name, bit in zip(self.extensions, bits, strict=True) if bit & number)
            ): count
            for number, count in found.items()
        }


def open_regular(path: Path) -> io.FileIO:
    """Open a file for reading without a buffer; what a pipe or a device would give is never waited for.

    Raises:
        OSError: there is no such file, it cannot be opened, or it is not a regular file.
    """
    stamp(path)
    # Should a pipe have taken the file's place meanwhile, opening it must not wait for a writer.
    handle = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)  # noqa: SIM115
    try:
        _check_regular(os.fstat(handle.fileno()))
    except OSError:
        handle.close()
        raise
    return handle


def stamp(path: Path) -> str:
    """The size and the time of a file: while they stay, so does its content.

    Raises:
        OSError: there is no such file, or it is not a regular file.
    """
    status = path.stat()
    _check_regular(status)
    return f"{status.st_size} {status.st_mtime_ns}"


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def unreadable(error: OSError) -> ShardIndex:
    """The index of a shard that cannot be opened: no samples and a fault."""
    return _Builder().build(f"cannot be read ({error.strerror or error})")


def scan(path: Path) -> ShardIndex:
    """Read the headers of the tar at `path`, seeking over the contents.

    Raises:
        OSError: the file cannot be opened or read.
    """
    builder = _Builder()
    with io.BufferedReader(open_regular(path)) as handle:
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
