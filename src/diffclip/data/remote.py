"""Shards at addresses that fsspec can open (https, s3, gs, hf, file …): listing, copies in a cache folder, indexes."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from diffclip.data.index import (
    INDEX_FOLDER,
    NO_SAMPLES,
    Header,
    cached_index,
    open_tar,
    read_index,
    write_index,
)
from diffclip.data.shards import expand_braces, natural
from diffclip.errors import DiffCLIPError, InputError
from diffclip.files import others_wait, write_atomically

_REMOTE = re.compile(r"file:|[a-z][a-z0-9+.-]*(://|::)", re.IGNORECASE)
# Addresses in a text: the part before the host, and the query, may hold a password or a key.
_USER = re.compile(r"(?<=://)[^\s/'\"\\]+@")
_QUERY = re.compile(r"(://[^\s?'\"\\]*)\?[^\s'\"\\]+")
# Parts of fsspec's information about a file that change with its content.
_MARKS = ("size", "ETag", "mtime", "Last-Modified", "LastModified", "last_modified", "updated", "blob_id")
# Addresses that are asked about at a time.
_QUESTIONS = 16
# Seconds after which a copy that was asked for is open.
_FRESH = 60.0


def is_remote(spec: str) -> bool:
    """Tell an address (`https://…`, `s3://…`, `file:…`) from a path."""
    return _REMOTE.match(spec) is not None


def shown(text: str) -> str:
    """Hide users, passwords and queries of the addresses in `text`."""
    return _QUERY.sub(r"\1?…", _USER.sub("…@", text))


def expand_remote(spec: str) -> list[str]:
    """List the addresses that `spec` names: an address with braces or `*`, or a folder of .tar files (`…/`).

    Listed addresses come in natural order; single ones are not looked at. A wrong address, or one without shards,
    raises `InputError`; a place that does not answer raises `DiffCLIPError`.
    """
    found: list[str] = []
    for address in expand_braces(spec):
        if not address.endswith("/") and "*" not in address:
            found.append(address)
            continue
        with _opened(address) as (system, path):
            held = system.glob(path) if "*" in address else system.ls(path, detail=False)
            held = [system.unstrip_protocol(one) for one in held if one.partition("?")[0].endswith(".tar")]
        if not held:
            raise InputError(f"no .tar shards in {shown(address)}: check the address")
        found += sorted(held, key=lambda url: natural(Path(url)))
    return found


class RemoteShards:
    """The remote shards of a corpus, copied whole to a folder that processes share.

    fsspec fetches them. Its own file cache (`filecache::`) does not keep them: it writes under the final name without
    a lock, where another process may be reading, and takes files at http addresses as never changing.

    Args:
        folder: where copies are kept.
        limit: size of the copies in 10^9 bytes, beyond which those used longest ago go; None: no limit.
    """

    def __init__(self, folder: Path, limit: float | None) -> None:
        self._folder, self._limit = folder, limit
        self._marks: dict[str, str] = {}

    def headers(self, addresses: Sequence[str]) -> dict[str, Header]:
        """The header of each shard's index. One that does not exist or is broken has `faults`; an address that does not
        answer raises `DiffCLIPError`."""
        with ThreadPoolExecutor(_QUESTIONS) as pool:
            return dict(zip(addresses, pool.map(self._header, addresses), strict=True))

    def copy(self, address: str) -> Path:
        """The local copy of a shard, fetched by one process while others wait; `DiffCLIPError` where that fails."""
        key = hashlib.sha256(f"{address} {self._marks[address]}".encode()).hexdigest()[:20]
        copy = self._folder / f"{key}.tar"
        with others_wait(self._folder / f".{key}.lock"):
            if not copy.exists():
                with write_atomically(copy) as temporary, _opened(address) as (system, path):
                    system.get_file(path, str(temporary))
                # an index that was put beside the shard may be of an earlier shard of the same size
                self._keep(address, open_tar(copy).header)
                self._make_room()
            with suppress(OSError):  # the time of the last change stays, by which the copy's index knows it
                os.utime(copy, ns=(time.time_ns(), copy.stat().st_mtime_ns))
        return copy

    def _header(self, address: str) -> Header:
        try:
            with _opened(address) as (system, path):
                about = system.info(path)
        except _MissingError as error:
            return Header("", {}, [str(error).removeprefix(f"{shown(address)} ")])
        mark = " ".join(str(about[key]) for key in _MARKS if about.get(key) is not None)
        self._marks[address] = mark
        if found := read_index(cached_index(address), mark, whole=False):
            return found[0]
        header = _header_beside(system, path, about.get("size")) or open_tar(self.copy(address)).header
        return self._keep(address, header)

    def _keep(self, address: str, header: Header) -> Header:
        """Keep the header of a shard, which outlives the copy."""
        header = replace(header, stamp=self._marks[address])
        write_index(cached_index(address), header, NO_SAMPLES)
        return header

    def _make_room(self) -> None:
        """Remove the copies used longest ago, except those that a process may be about to open.

        A copy that a process has open stays readable.
        """
        if self._limit is None:
            return
        copies = []
        for file in self._folder.glob("[0-9a-f]" * 20 + ".tar"):  # no others that a user keeps there
            with suppress(FileNotFoundError):  # another process makes room too
                copies.append((file.stat().st_atime, file.stat().st_size, file))
        used = sum(size for _, size, _ in copies)
        for used_at, size, file in sorted(copies):
            if used > self._limit * 1e9 and time.time() - used_at > _FRESH:
                file.unlink(missing_ok=True)
                used -= size


def _header_beside(system: Any, path: str, size: Any) -> Header | None:
    """The header of the index that was written beside a shard before both were put there."""
    folder, _, name = path.partition("?")[0].rpartition("/")
    # nearly anything may go wrong, and then there is no index
    with tempfile.TemporaryDirectory() as scratch, suppress(Exception):
        file = Path(scratch, "index.npy")
        system.get_file(f"{folder}/{INDEX_FOLDER}/{name}.npy", str(file))
        found = read_index(file, None, whole=False)
        if found is not None and found[0].stamp.startswith(f"{size} "):
            return found[0]
    return None


class _MissingError(InputError):
    """The server says that the address does not exist."""


@contextmanager
def _opened(address: str) -> Iterator[tuple[Any, str]]:
    """The file system of an address and the path there; errors with it are one line."""
    from fsspec.core import url_to_fs

    what = shown(address)
    try:
        yield url_to_fs(address)
    except DiffCLIPError:
        raise
    except (ImportError, ValueError) as error:
        raise InputError(f"{what} cannot be read ({shown(str(error))}): check the address") from None
    # each protocol has errors of its own
    except Exception as error:
        # at http every failure is a FileNotFoundError, which only its cause tells from a missing file
        missing = isinstance(error, FileNotFoundError)
        cause = error.__cause__ if missing and address.startswith("http") else error
        if missing and (cause in (None, error) or getattr(cause, "status", None) in (404, 410)):
            raise _MissingError(
                f"{what} does not exist: check the address (that of a folder ends with '/')"
            ) from None
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise cause from None  # of the copy's disk
        reason = " ".join(shown(str(cause)).split()) or type(cause).__name__
        raise DiffCLIPError(
            f"{what} cannot be read ({reason}): check the address and the network, or your credentials"
        ) from cause
