"""What visitors send: pictures within limits, kept in one folder for a while, and texts within limits."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from diffclip.errors import InputError

MAX_BYTES = 20 * 2**20
"""Of one picture file."""
MAX_PIXELS = 25_000_000
MAX_TEXTS, MAX_LETTERS = 32, 300

KEPT_SECONDS, KEPT_BYTES, KEPT_FILES = 3600, 500 * 2**20, 1000
"""Uploads are removed when they are older, and the oldest when all together are larger, or more."""


def read_upload(path: str | None, folder: Path, decode: Callable[[bytes, str], Image.Image]) -> Image.Image:
    """The uploaded picture at `path`, RGB.

    Args:
        path: of the file.
        folder: of the uploads.
        decode: makes a picture of a file's bytes; errors call it by the file's name alone.

    Raises:
        InputError: there is none, it lies outside `folder`, was removed meanwhile, is above `MAX_BYTES`, or
            `decode` refuses it.
    """
    if not path:
        raise InputError("no picture yet: drop one, or choose a scene")
    if not lies_within(path, folder):
        raise InputError("this picture was not uploaded here: drop it on the page")
    name = Path(path).name
    try:
        with open(path, "rb") as handle:
            content = handle.read(MAX_BYTES + 1)
    except OSError:
        raise InputError(f"{name} is no longer here: drop it again") from None
    if len(content) > MAX_BYTES:
        raise InputError(f"{name} is larger than {MAX_BYTES // 2**20} MB: scale it down first")
    return decode(content, name)


def lies_within(path: str, folder: Path) -> bool:
    """Whether `path`, with links and dots followed, is a place inside `folder`."""
    if "\0" in path:
        return False
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def parse_texts(lines: str) -> list[str]:
    """The texts in `lines`, one a line; blank lines and repetitions are dropped.

    Raises:
        InputError: there is none, or they are more than `MAX_TEXTS` or longer than `MAX_LETTERS`.
    """
    # JSON can hold halves of surrogate pairs, which no answer could be written with
    clean = lines.encode(errors="replace").decode()
    texts = list(dict.fromkeys(" ".join(line.split()) for line in clean.splitlines() if line.strip()))
    if not texts:
        raise InputError("no text yet: write one a line")
    if len(texts) > MAX_TEXTS:
        raise InputError(f"{len(texts)} texts are too many: up to {MAX_TEXTS}, one a line")
    longest = max(map(len, texts))
    if longest > MAX_LETTERS:
        raise InputError(f"a text of {longest} letters is too long: up to {MAX_LETTERS}")
    return texts


def sweep(
    folder: Path, seconds: float = KEPT_SECONDS, size: int = KEPT_BYTES, count: int = KEPT_FILES
) -> None:
    """Remove files below `folder` that are older than `seconds`, and the oldest of those that exceed `size` bytes or
    are more than `count`; and the folders that they leave empty."""
    files = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            files.append((stat.st_mtime, stat.st_size, path))
    left, more = sum(size for _, size, _ in files), len(files)
    for moment, own, path in sorted(files):
        if left <= size and more <= count and moment >= time.time() - seconds:
            return
        path.unlink(missing_ok=True)
        left, more = left - own, more - 1
        if path.parent != folder:
            with contextlib.suppress(OSError):
                path.parent.rmdir()
