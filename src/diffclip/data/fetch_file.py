"""One large file from the web, whole or not at all; what a broken connection has left is gone on with."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import diffclip
from diffclip.errors import DiffCLIPError
from diffclip.files import disk_errors, write_text

Advance = Callable[[str, int, int | None], None]
"""Called with what is counted, how much more of it is done, and how much there is if that is known."""

_CHUNK = 1 << 20
# seconds without a single byte
_SILENCE = 60
# connections that bring nothing new, one after the other
_TRIES = 4


def fetch_file(address: str, target: Path, advance: Advance | None = None) -> Path:
    """Fetch `address` to the file `target`; one that is there already stays as it is.

    What has come lies in `.TARGET.part` until it is whole. A later call asks for the rest alone where the server can
    tell that its file is still the same (`ETag` or `Last-Modified`), else it starts anew.

    Args:
        address: of http, https or file.
        target: where the whole file goes; its folder is made.
        advance: called with "MB of FILE", the megabytes that have come, and all of them if known.

    Raises:
        DiffCLIPError: the server refuses, or the connection breaks again and again; what has come is kept.
        InputError: the disk refuses.
    """
    if target.exists():
        return target
    part, mark = _beside(target, "part"), _beside(target, "mark")
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        barren = 0
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                _fetch(address, part, mark, advance)
                break
            except urllib.error.HTTPError as error:
                if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and before:
                    part.unlink()
                    continue
                raise DiffCLIPError(
                    f"cannot fetch {address}: the server says {error.code} {error.reason}"
                ) from error
            except (http.client.HTTPException, OSError) as error:
                if isinstance(error, OSError) and error.filename is not None:
                    raise
                barren = 0 if part.exists() and part.stat().st_size > before else barren + 1
                if barren == _TRIES:
                    reason = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
                    raise DiffCLIPError(
                        f"cannot fetch {address} ({reason}): check the network and start again, what has come is kept"
                    ) from error
        os.replace(part, target)
        mark.unlink(missing_ok=True)
    return target


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}.{ending}")


def _fetch(address: str, part: Path, mark: Path, advance: Advance | None) -> None:
    """Bring `part` to its full length.

    Raises:
        OSError: the connection broke before that.
    """
    headers = {"User-Agent": f"diffclip/{diffclip.__version__}"}
    have = part.stat().st_size if part.exists() and mark.exists() else 0
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": mark.read_text(encoding="utf-8")}
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=_SILENCE) as answer:
        if answer.status != http.client.PARTIAL_CONTENT:
            have = 0
        same = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        # a weak tag does not vouch for single bytes
        if same and not same.startswith("W/"):
            write_text(mark, same)
        else:
            mark.unlink(missing_ok=True)
        length = answer.headers.get("Content-Length")
        whole = have + int(length) if length else None
        said = _Megabytes(part.name[1 : -len(".part")], have, whole, advance)
        with part.open("ab" if have else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                said.add(len(chunk))
            file.flush()
            os.fsync(file.fileno())
    if whole is not None and part.stat().st_size != whole:
        raise ConnectionError(f"{part.stat().st_size} of {whole} bytes came")


class _Megabytes:
    """Says megabytes as whole numbers, without losing the rest."""

    def __init__(self, name: str, have: int, whole: int | None, advance: Advance | None) -> None:
        self._what, self._advance = f"MB of {name}", advance
        self._whole = None if whole is None else max(1, whole // 10**6)
        self._bytes, self._told = 0, 0
        self.add(have)

    def add(self, count: int) -> None:
        self._bytes += count
        new = self._bytes // 10**6 - self._told
        if new and self._advance is not None:
            self._advance(self._what, new, self._whole)
            self._told += new
