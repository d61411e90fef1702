"""Whether a checkpoint is what was written: sizes and checksums, kept beside its files."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

from diffclip.errors import InputError
from diffclip.files import write_text

FILES_FILE = "files.json"


def list_files(folder: Path) -> None:
    """Write `files.json`: size and CRC-32 of every file in `folder`."""
    listed = {file.name: [file.stat().st_size, _checksum(file)] for file in sorted(folder.iterdir())}
    write_text(folder / FILES_FILE, json.dumps(listed, indent=1) + "\n")


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint's files, None if they are as they were written."""
    try:
        listed = json.loads((folder / FILES_FILE).read_text(encoding="utf-8"))
        for name, (size, checksum) in listed.items():
            file = folder / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} is cut off: {file.stat().st_size} of {size} bytes"
            if _checksum(file) != checksum:
                return f"{name} is not what was written"
        return None
    except FileNotFoundError:
        return f"{FILES_FILE} is missing"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{FILES_FILE} cannot be read: {' '.join(str(error).split())}"


def newest_whole(folders: list[Path]) -> tuple[Path | None, dict[Path, str]]:
    """The first of `folders`, newest first, that is whole, and what is wrong with each before it."""
    damaged: dict[Path, str] = {}
    for folder in folders:
        fault = damage(folder)
        if fault is None:
            return folder, damaged
        damaged[folder] = fault
    return None, damaged


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint to `damaged_…`, where nothing takes it for a whole one."""
    aside = folder.with_name(f"damaged_{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        return folder.rename(aside)
    except OSError as error:
        raise InputError(f"{folder} is damaged and cannot be renamed ({error.strerror}): remove it") from None


def _checksum(file: Path) -> int:
    value = 0
    with file.open("rb") as handle:
        while block := handle.read(1 << 22):
            value = zlib.crc32(block, value)
    return value
