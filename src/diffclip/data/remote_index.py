"""Shards at remote addresses: how many samples they have, their local copies, and the indexes of these.

Counts come from `diffclip-index` beside the shards. Where there is none, a shard is fetched once to be scanned, and
what is found is kept in the user's cache folder by address and stamp. Indexes are made from the local copies, which
takes no longer than fetching them would.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from diffclip.data.index import ShardIndex, scan, unreadable
from diffclip.data.index_files import (
    COUNTS_FILE,
    INDEX_FOLDER,
    Counts,
    cached_folder,
    count,
    keep_counts,
    keep_index,
    load_counts,
    load_index,
    parse_counts,
)
from diffclip.data.remote import base_name, read_beside, remote_stamps, shown
from diffclip.data.shard_cache import ShardCache
from diffclip.data.transfer import PIPE
from diffclip.errors import DiffCLIPError, InputError

# Shards that are fetched while one is scanned; and between two times that counts are written.
_AHEAD, _BETWEEN_WRITES = 4, 100
# Seconds of silence at first, and between two lines of progress.
_SILENT, _BETWEEN_LINES = 3.0, 30.0


class RemoteShards:
    """The remote shards of a corpus. An object may be forked or pickled to data workers.

    Args:
        folder: where copies are kept.
        limit: bytes of copies, or None for no more than is being read.
        stall: seconds after which an address that sends nothing is an error.
    """

    def __init__(self, folder: Path, limit: int | None, stall: float) -> None:
        self._copies, self._stall = ShardCache(folder, limit, stall), stall
        self._marks: dict[str, str] = {}
        self._beside: set[str] = set()

    def counts(self, addresses: Sequence[str]) -> list[Counts]:
        """The counts of each shard. One that does not exist or is broken has `faults`.

        Raises:
            DiffCLIPError: an address sends nothing, or a connection is lost for good.
        """
        found = self._counts_beside(addresses)
        self._beside |= found.keys()
        left = [address for address in dict.fromkeys(addresses) if address not in found]
        marks = dict(zip(left, map(_known_stamp, remote_stamps(left, self._stall)), strict=True))
        found |= self._counts_kept(marks)
        found |= self._counts_scanned(
            {address: mark for address, mark in marks.items() if address not in found}
        )
        self._marks |= {address: counts.stamp for address, counts in found.items()}
        return [found[address] for address in addresses]

    def open(self, address: str) -> tuple[Path, ShardIndex]:
        """The local copy of a shard, fetched if it is not there, and its index.

        Raises:
            InputError: there is no such shard, or another than the one that was counted.
            DiffCLIPError: the address sends nothing, or the connection is lost for good.
            OSError: the copy cannot be read.
        """
        path, mark = self._copies.path(address), self._marks[address]
        folder, name = _folder(address), _file_name(address)
        with path.open("rb") as copy:
            size, counted = str(os.fstat(copy.fileno()).st_size), mark.partition(" ")[0]
            if address in self._beside and counted != size:
                raise InputError(f"{shown(address)} has {size} bytes, but its index is of {counted}")
            # All workers come for a new shard at the same time: one of them scans it.
            fcntl.flock(copy, fcntl.LOCK_EX)
            index = load_index([folder], name, mark)
            if index is None:
                index = scan(path)
                keep_index([folder], name, mark, index)
        return path, index

    def ahead(self, addresses: Sequence[str]) -> None:
        """Fetch these in this order in the background; copies of others may be removed."""
        self._copies.ahead(addresses)

    def close(self) -> None:
        """Stop fetching ahead. In a data worker it does nothing."""
        self._copies.close()

    def _counts_beside(self, addresses: Sequence[str]) -> dict[str, Counts]:
        folders = {_parent(address) for address in addresses}
        files = {
            folder: parse_counts(read_beside(folder, f"{INDEX_FOLDER}/{COUNTS_FILE}", self._stall) or b"")
            for folder in folders
        }
        found = {address: files[_parent(address)].get(base_name(address)) for address in addresses}
        return {address: counts for address, counts in found.items() if counts}

    def _counts_kept(self, marks: dict[str, str]) -> dict[str, Counts]:
        files = {folder: load_counts(folder) for folder in {_folder(address) for address in marks}}
        found = {}
        for address, mark in marks.items():
            counts = files[_folder(address)].get(_file_name(address))
            if counts and counts.stamp == mark:
                found[address] = counts
        return found

    def _counts_scanned(self, marks: dict[str, str]) -> dict[str, Counts]:
        if not marks:
            return {}
        found: dict[str, Counts] = {}
        todo, due = list(marks), time.monotonic() + _SILENT
        for number, address in enumerate(todo):
            self.ahead(todo[number : number + _AHEAD])
            found[address] = self._scanned(address, marks[address])
            if (number + 1) % _BETWEEN_WRITES == 0 or number + 1 == len(todo):
                _keep(found)
            if time.monotonic() > due:
                due = time.monotonic() + _BETWEEN_LINES
                print(
                    f"diffclip: fetching {len(todo)} shards to count their samples, which is done once: "
                    f"{number + 1} are counted",
                    file=sys.stderr,
                    flush=True,
                )
        self.close()
        return found

    def _scanned(self, address: str, mark: str) -> Counts:
        try:
            index = scan(self._copies.path(address))
        except InputError as error:
            return Counts("", {}, (str(error).removeprefix(f"{shown(address)} "),))
        except OSError as error:
            return count(unreadable(error), "")
        keep_index([_folder(address)], _file_name(address), mark, index)
        return count(index, mark)


def _known_stamp(answer: str | DiffCLIPError) -> str:
    # What is wrong with a shard is said when it is fetched.
    return answer if isinstance(answer, str) else ""


def _keep(found: dict[str, Counts]) -> None:
    folders: dict[Path, dict[str, Counts]] = {}
    for address, counts in found.items():
        # One without samples may have been out of reach.
        if counts.samples:
            folders.setdefault(_folder(address), {})[_file_name(address)] = counts
    for folder, counts_by_name in folders.items():
        keep_counts([folder], counts_by_name)


def _parent(address: str) -> str:
    return address if address.startswith(PIPE) else address.partition("?")[0].rpartition("/")[0]


def _folder(address: str) -> Path:
    return cached_folder(_parent(address).encode("utf-8", "surrogateescape"))


def _file_name(address: str) -> str:
    # An address may be longer than a file's name can be.
    return hashlib.sha256(address.encode("utf-8", "surrogateescape")).hexdigest()[:20]
