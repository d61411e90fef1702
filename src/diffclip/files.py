"""Read and hash; write files atomically: first under a temporary name beside the target, then renamed to it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from diffclip.errors import InputError

_NO_FSYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)


def cache_folder() -> Path:
    """Return the folder for files that can be recreated: `$XDG_CACHE_HOME/diffclip`, by default `~/.cache/diffclip`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diffclip"


def checkpoint_of(path: str | Path) -> Path:
    """Return the best checkpoint of a run folder, or the last one if none is best; follow a link that is a file; return
    other paths unchanged."""
    path = Path(path)
    checkpoints = path / "checkpoints"
    if path.parent.name == "checkpoints" and path.is_file():
        return read_link(path) or path
    if not checkpoints.is_dir():
        return path
    for name in ("best", "last"):
        if folder := read_link(checkpoints / name):
            # the link's name says more than the number of a step
            return checkpoints / name if (checkpoints / name).is_dir() else folder
    raise InputError(f"{path} has no checkpoint yet: wait for the training to write one")


def write_link(link: Path, folder: Path) -> None:
    """Make `link` point to a folder beside it; where links cannot be made, it is a file with the folder's name. A real
    folder in place of the link, as a copy that follows links makes it, is moved aside under a new name."""
    temporary = link.with_name(f".{link.name}.tmp")
    with explain_disk_errors(link):
        temporary.unlink(missing_ok=True)
        try:
            temporary.symlink_to(folder.name)
        except OSError:  # each file system without links has its own error
            temporary.write_text(f"{folder.name}\n", encoding="utf-8")
            flush(temporary)
        if link.is_dir() and not link.is_symlink():
            aside = link.with_name(f"{link.name}.{uuid.uuid4().hex[:8]}")
            os.replace(link, aside)
            print(f"diffclip: {link} was a folder, not a link: it is {aside} now", file=sys.stderr)
        os.replace(temporary, link)


def read_link(link: Path) -> Path | None:
    """Return the folder that `write_link` made `link` point to, or None if link or folder does not exist. A real folder
    in place of the link, as a copy that follows links makes it, stands for itself."""
    if link.is_dir() and not link.is_symlink():
        return link
    try:
        name = os.readlink(link) if link.is_symlink() else link.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return link.parent / name if name and (link.parent / name).is_dir() else None


def printable(name: str) -> str:
    """Return a name on one line: line breaks and unprintable characters are escaped as in Python ("\\n")."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)


@contextmanager
def explain_disk_errors(target: Path) -> Iterator[None]:
    """Turn errors of the operating system into one line that names `target`.

    `BrokenPipeError` (the reader has left) is no fault of the target and passes unchanged.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (None, errno.EPIPE):
            raise
        fault = f"cannot write {target}: {error.strerror}; choose another place"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fault = f"no space left on device while writing {target}: free some space or choose another place"
        elif error.errno == errno.ENOTDIR:
            fault = f"cannot write {target}: a file is in the way, where the path needs a folder"
        elif error.errno in (errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY):
            fault = f"cannot write {target}: a file or folder of that name is in the way"
        raise InputError(fault) from error


@contextmanager
def write_atomically(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; rename it to `target` when the block succeeds, else remove it.

    The block may create a file or a folder at the temporary path. A folder replaces only an empty folder. If `target`
    is a link, the file that it points to is replaced. A pipe or a device cannot be replaced: it is yielded itself, and
    the block writes straight into it.

    Raises:
        InputError: no space left, no permission, a folder is in the way, or anything else the system refuses.
    """
    target = Path(target)
    with explain_disk_errors(target):
        if _is_special(target):
            yield target
            return
        destination = Path(os.path.realpath(target))
        # without the target's name, which may already have the maximum length
        temporary = destination.parent / f".{uuid.uuid4().hex[:8]}.tmp"
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            flush(temporary)
            os.replace(temporary, destination)
        finally:
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)


def check_writable(target: str | Path) -> None:
    """Check, before long work, that the file `target` can be written; leave no file behind."""
    target = Path(target)
    with explain_disk_errors(target):
        if target.is_dir():
            raise InputError(f"cannot write {target}: a folder of that name is in the way")
        if _is_special(target):
            return
        folder = Path(os.path.realpath(target)).parent
        while not folder.exists():
            folder = folder.parent
        tempfile.TemporaryFile(dir=folder).close()


def check_not_input(output: Path, inputs: Iterable[Path]) -> None:
    """Raise `InputError` if the file `output` is one of the `inputs`, which it would replace."""
    if output.exists() and any(path.exists() and output.samefile(path) for path in inputs):
        raise InputError(f"{output} is an input, which would be lost: give another name")


def check_new(target: str | Path) -> None:
    """Check, before long work, that `target`, a file or folder, can be written and replaces nothing."""
    target = Path(target)
    if target.is_dir():
        if any(target.iterdir()):
            raise InputError(f"{target} is not empty: give a new folder")
        target = target / "file"
    elif target.exists() or target.is_symlink():
        raise InputError(f"{target} exists: give another name, or move it away")
    check_writable(target)


def read_text(file: Path) -> str:
    """Read a text file as UTF-8; a line ends in \\n, or in \\r\\n. A file that cannot be read raises `InputError`."""
    try:
        text = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        return text if "\n" in text else text.replace("\r", "\n")  # as old spreadsheets write them
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {file} ({error}): it should be UTF-8 text") from error
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}; check the path") from error


def read_json(file: Path) -> Any:
    """Return what a JSON file holds; None if it is missing or damaged."""
    with suppress(OSError, ValueError):
        return json.loads(file.read_bytes())


def write_text(target: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to `target` atomically; escape bytes of file names that are not UTF-8."""
    with write_atomically(target) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def _is_special(path: Path) -> bool:
    """Tell whether `path`, or what it points to, is a pipe or a device."""
    return path.exists() and not path.is_file() and not path.is_dir()


def flush(path: Path) -> None:
    """Write a file, or all files of a folder, to the disk (fsync, where the file system has it), before a rename makes
    them visible."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as handle:
                try:
                    os.fsync(handle.fileno())
                except OSError as error:
                    if error.errno not in _NO_FSYNC:
                        raise


@cache
def _say_without_locks(folder: Path, reason: str) -> None:
    print(
        f"diffclip: {folder} is on a file system without locks ({reason}): let one process at a time write there",
        file=sys.stderr,
    )


@contextmanager
def hold_lock(file: Path, busy: str | None = None) -> Iterator[None]:
    """Lock `file`, created if needed, during the block, or until the process ends; also for other machines.

    While another process holds the lock, this one waits, or raises `InputError` with the message `busy`. Children
    do not hold the lock of their parent. On a file system without locks, the block runs with a warning.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(file)
    with explain_disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=-1 if busy is None else 0)
        except Timeout:
            raise InputError(str(busy)) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP):
                raise
            _say_without_locks(file.parent, str(error.strerror))
    try:
        yield
    finally:
        lock.release()


def digest_of(value: object) -> str:
    """Hash anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
