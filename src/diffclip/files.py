"""Files are written whole or not at all: to a temporary name beside the target, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diffclip.errors import InputError


@contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Turn a full disk, a read-only place or a missing permission into one line that names `target`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"no space left on device while writing {target}: free some space or choose another place"
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise InputError(
                f"cannot write {target}: {os.strerror(error.errno)}; choose another place"
            ) from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
            raise InputError(f"cannot write {target}: a file or folder of that name is in the way") from error
        raise


@contextmanager
def write_atomically(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; rename it to `target` when the block ends well, else remove it.

    The block may create a file or a folder at the temporary path. A folder never replaces an existing one.

    Raises:
        InputError: no space left, no permission, or a folder is in the way.
    """
    target = Path(target)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            _flush(temporary)
            os.replace(temporary, target)
        finally:
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)


def write_text(target: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to `target`, whole or not at all."""
    with write_atomically(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _flush(path: Path) -> None:
    """Ask the disk to hold the bytes before the rename makes them visible."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
