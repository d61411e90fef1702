"""The picture files below a folder, with what tells that one has changed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diffclip.data.images import SUFFIXES
from diffclip.data.samples import Fault
from diffclip.errors import InputError

_SUFFIXES = tuple(suffix.encode() for suffix in SUFFIXES)
# of a file that has just gone, and of links that lead nowhere
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True)
class Entry:
    """A picture file: its path within the folder, as the system writes it, its bytes and time of change in ns."""

    path: bytes
    size: int
    mtime: int


@dataclass(frozen=True)
class Unreadable:
    """A file or folder within the folder that the system does not let us look at."""

    path: bytes
    reason: str

    def fault(self) -> Fault:
        return Fault(os.fsdecode(self.path), f"cannot be read ({self.reason})")


def real_folder(folder: str | Path) -> Path:
    """The folder itself, whatever links lead to it.

    Raises:
        InputError: there is none, or it is a file.
    """
    if not os.path.exists(folder):
        raise InputError(f"{folder} does not exist: give a folder of pictures")
    if not os.path.isdir(folder):
        raise InputError(f"{folder} is a file: give a folder of pictures")
    return Path(os.path.realpath(folder))


def scan(folder: Path, unreadable: list[Unreadable]) -> Iterator[Entry]:
    """The picture files below `folder`, a real path, to the bottom; those of one folder in any order.

    As `find_images` finds them: hidden files and folders are passed over, and links to folders are not followed. Nor
    are links to files that lead out of `folder`. What is not a regular file is no picture. What cannot be looked at is
    appended to `unreadable`.

    Raises:
        InputError: `folder` itself cannot be read.
    """
    root = os.fsencode(folder)
    inside = os.path.join(root, b"")
    waiting = [b""]
    while waiting:
        below = waiting.pop()
        folders: list[bytes] = []
        try:
            with os.scandir(os.path.join(root, below)) as listing:
                # one at a time: a folder may hold any number
                for entry in listing:
                    name, path = entry.name, os.path.join(below, entry.name)
                    if name.startswith(b"."):
                        continue
                    try:
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(path)
                        elif name.lower().endswith(_SUFFIXES):
                            if entry.is_symlink() and not os.path.realpath(entry.path).startswith(inside):
                                continue
                            status = entry.stat()
                            if stat.S_ISREG(status.st_mode):
                                yield Entry(path, status.st_size, status.st_mtime_ns)
                    except OSError as error:
                        _note(error, path, unreadable)
        except OSError as error:
            if not below:
                raise InputError(f"cannot read {folder}: {error.strerror}") from error
            _note(error, below, unreadable)
        waiting += sorted(folders)


def _note(error: OSError, path: bytes, unreadable: list[Unreadable]) -> None:
    if error.errno not in _GONE:
        unreadable.append(Unreadable(path, str(error.strerror)))
