"""Shards at addresses that fsspec can open (https, s3, gs, hf, file …): list them, copy them, read their indexes."""

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

from diffclip.data.index import INDEX_FOLDER, Header, Index, cached_index, open_index, read_index, write_index
from diffclip.data.shards import expand_braces, natural_key
from diffclip.errors import DiffCLIPError, InputError, hide_secrets
from diffclip.files import hold_lock, write_atomically

_REMOTE = re.compile(r"file:|[a-z][a-z0-9+.-]*(://|::)", re.IGNORECASE)
# Parts of fsspec's information about a file that change with its content.
_MARKS = ("size", "ETag", "mtime", "Last-Modified", "LastModified", "last_modified", "updated", "blob_id")
# Number of addresses that are queried at the same time.
_PARALLEL_QUERIES = 16
# Seconds for which a requested copy is not removed: a process may be about to open it.
_FRESH = 60.0
# Seconds without a new byte after which an unfinished copy counts as left behind by a process that was killed.
_ABANDONED = 600.0
# Seconds to wait before a shard that was not fetched is asked for again.
_PAUSES = (1.0, 5.0, 30.0)


def is_remote(spec: str) -> bool:
    """Tell whether `spec` is an address (`https://…`, `s3://…`, `file:…`) and not a path."""
    return _REMOTE.match(spec) is not None


def expand_remote(spec: str) -> list[str]:
    """List the addresses that `spec` names: an address with braces or `*`, or a folder of .tar files (`…/`).

    Listed addresses are in natural order; single addresses are not checked. An address that is wrong or has no shards
    raises `InputError`. A server that does not answer raises `DiffCLIPError`.
    """
    addresses: list[str] = []
    for address in expand_braces(spec):
        if not address.endswith("/") and "*" not in address:
            addresses.append(address)
            continue
        with _opened(address) as (system, path):
            urls = system.glob(path) if "*" in address else system.ls(path, detail=False)
            urls = [system.unstrip_protocol(url) for url in urls if url.partition("?")[0].endswith(".tar")]
        if not urls:
            raise InputError(f"no .tar shards in {hide_secrets(address)}: check the address")
        addresses += sorted(urls, key=lambda url: natural_key(Path(url)))
    return addresses


class RemoteShards:
    """The remote shards of a set, copied whole to a folder that processes share.

    fsspec fetches them, but its file cache (`filecache::`) is not used. It writes without a lock under the final name,
    where another process may be reading, and it assumes that files at http addresses never change.

    `limit` is for the copies, in 10^9 bytes: the least recently used are removed. None: no limit.
    """

    def __init__(self, folder: Path, limit: float | None) -> None:
        self._folder, self._limit = folder, limit
        self._marks: dict[str, str] = {}

    def headers(self, addresses: Sequence[str]) -> dict[str, Header]:
        """Return the header of each shard's index. A shard that does not exist or is broken has `faults`. An address
        that does not answer raises `DiffCLIPError`."""
        with ThreadPoolExecutor(_PARALLEL_QUERIES) as pool:
            return dict(zip(addresses, pool.map(self._header, addresses), strict=True))

    def copy(self, address: str) -> Path:
        """Return the local copy of a shard. One process fetches it, others wait. A server that fails is asked four
        times; then, and at any other failure, `DiffCLIPError` is raised."""
        key = hashlib.sha256(f"{address} {self._marks[address]}".encode()).hexdigest()[:20]
        copy = self._folder / f"{key}.tar"
        with hold_lock(self._folder / f".{key}.lock"):
            if not copy.exists():
                with write_atomically(copy) as temporary:
                    _fetch(address, temporary)
                # replaces the header from beside the shard, which may be of an earlier shard of the same size
                self._keep(address, open_index(copy).header)
                self._make_room()
            with suppress(OSError):  # keep the modification time, which identifies the copy in its index
                os.utime(copy, ns=(time.time_ns(), copy.stat().st_mtime_ns))
        return copy

    def _header(self, address: str) -> Header:
        try:
            with _opened(address) as (system, path):
                info = system.info(path)
        except _MissingError as error:
            return Header("", [], [], [f"{error.reason}: {error.advice}"])
        mark = " ".join(str(info[key]) for key in _MARKS if info.get(key) is not None)
        self._marks[address] = mark
        if index := read_index(Path(path), cached_index(address), mark, tables=False):
            return index.header
        header = _fetch_header(system, path, info.get("size")) or open_index(self.copy(address)).header
        return self._keep(address, header)

    def _keep(self, address: str, header: Header) -> Header:
        """Write the header of a shard to the cache folder, where it outlives the copy of the shard."""
        header = replace(header, stamp=self._marks[address])
        write_index(cached_index(address), Index(Path(address), header))
        return header

    def _make_room(self) -> None:
        """Remove abandoned copies, and the least recently used ones, except those that a process may be about to open.

        A copy that a process has open stays readable. Other processes, and users of the folder, remove copies too.
        """
        for file in self._folder.glob(f".{'[0-9a-f]' * 8}.tmp"):  # as `write_atomically` names them
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > _ABANDONED:
                    file.unlink()
        if self._limit is None:
            return
        copies = []
        for file in self._folder.glob("[0-9a-f]" * 20 + ".tar"):  # no other files that a user keeps there
            with suppress(OSError):
                copies.append((file.stat().st_atime, file.stat().st_size, file))
        used = sum(size for _, size, _ in copies)
        for used_at, size, file in sorted(copies):
            if used > self._limit * 1e9 and time.time() - used_at > _FRESH:
                file.unlink(missing_ok=True)
                used -= size


def _fetch(address: str, file: Path) -> None:
    """Copy a shard to `file`, in several attempts if the server or the connection fails."""
    for pause in (*_PAUSES, None):
        try:
            with _opened(address) as (system, path):
                return system.get_file(path, str(file))
        except DiffCLIPError as error:
            if isinstance(error, InputError) or pause is None:
                raise
            time.sleep(pause)


def _fetch_header(system: Any, path: str, size: Any) -> Header | None:
    """Return the header of the index that was uploaded together with a shard, or None."""
    folder, _, name = path.partition("?")[0].rpartition("/")
    # nearly anything may go wrong; any failure counts as no index
    with tempfile.TemporaryDirectory() as scratch, suppress(Exception):
        file = Path(scratch, "index")
        system.get_file(f"{folder}/{INDEX_FOLDER}/{name}.index", str(file))
        index = read_index(file, file, None, tables=False)
        if index is not None and index.header.stamp.startswith(f"{size} "):
            return index.header
    return None


class _MissingError(InputError):
    """The server says that the address does not exist."""


@contextmanager
def _opened(address: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of an address and the path in it; turn errors into one line."""
    from fsspec.core import url_to_fs

    name = hide_secrets(address)
    try:
        yield url_to_fs(address)
    except DiffCLIPError:
        raise
    except (ImportError, ValueError) as error:
        advice = "install this package" if isinstance(error, ImportError) else "check the address"
        raise InputError(f"{name} cannot be read ({hide_secrets(str(error))}): {advice}") from None
    except Exception as error:  # each protocol has errors of its own
        # with http every failure is a FileNotFoundError; only its cause shows if the file is missing
        missing = isinstance(error, FileNotFoundError)
        cause = error.__cause__ if missing and address.startswith("http") else error
        if missing and (cause in (None, error) or getattr(cause, "status", None) in (404, 410)):
            advice = "check the address (that of a folder ends with '/')"
            raise _MissingError(name, "does not exist", advice) from None
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise cause from None  # the disk of the copies is full
        reason = " ".join(hide_secrets(str(cause)).split()) or type(cause).__name__
        advice = "check the address and the network, or your credentials"
        raise DiffCLIPError(f"{name} cannot be read ({reason}): {advice}") from cause
