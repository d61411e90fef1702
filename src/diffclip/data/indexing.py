"""The indexes of many shards at once: read where they are kept, else made by several processes and kept."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import TypeVar

from diffclip.data.index import ShardIndex, scan, stamp, unreadable
from diffclip.data.index_files import (
    Counts,
    count,
    index_folders,
    keep_counts,
    keep_index,
    load_counts,
    load_index,
)
from diffclip.errors import DiffCLIPError

Indexed = tuple[ShardIndex, Counts]

_Made = TypeVar("_Made")
# Fewer shards than this are scanned before other processes have started.
_WORTH_PROCESSES = 9
_MOST_PROCESSES = 16
# Seconds of silence at first, and between two lines of progress.
_SILENT, _BETWEEN = 3.0, 30.0


def indexes_of(paths: Sequence[Path], timeout: float) -> list[Indexed]:
    """The index and the counts of each shard. What is made anew is kept, beside the shards if it can be.

    A broken shard gives what is whole in it, with `faults`; so does one that cannot be opened.

    Raises:
        DiffCLIPError: shards were to be scanned, and none could be for `timeout` seconds.
    """
    known = _known(paths)
    found = {path: indexed for path in known if (indexed := _load(path, known[path]))}
    made = _made(_make, [path for path in known if path not in found], timeout)
    _keep({path: counts for path, (_, counts) in (found | made).items() if counts != known[path]})
    return [(found | made)[path] for path in paths]


def counts_of(paths: Sequence[Path], timeout: float) -> list[Counts]:
    """The counts of each shard, as `indexes_of` gives them; indexes are not read where counts are kept."""
    known = _known(paths)
    found = {path: counts for path, counts in known.items() if counts and counts.stamp == _mark(path)}
    made = _made(_make_counts, [path for path in known if path not in found], timeout)
    _keep(made)
    return [(found | made)[path] for path in paths]


def _known(paths: Sequence[Path]) -> dict[Path, Counts | None]:
    """What the folders say of each shard, be it still true or not."""
    files: dict[Path, Mapping[str, Counts]] = {}
    known: dict[Path, Counts | None] = {}
    for path in paths:
        if path.parent not in files:
            beside, cached = map(load_counts, index_folders(path.parent))
            fresh = {name: one for name, one in cached.items() if one.stamp == _mark(path.parent / name)}
            files[path.parent] = {**beside, **fresh}
        known[path] = files[path.parent].get(path.name)
    return known


def _keep(made: Mapping[Path, Counts]) -> None:
    folders: dict[Path, dict[str, Counts]] = {}
    for path, counts in made.items():
        # One that cannot be opened now may be whole the next time.
        if counts.stamp:
            folders.setdefault(path.parent, {})[path.name] = counts
    for folder, found in folders.items():
        keep_counts(index_folders(folder), found)


def _mark(path: Path) -> str:
    try:
        return stamp(path)
    except OSError:
        return ""


def _load(path: Path, known: Counts | None) -> Indexed | None:
    mark = _mark(path)
    index = load_index(index_folders(path.parent), path.name, mark) if mark else None
    if index is None:
        return None
    return index, known if known and known.stamp == mark else count(index, mark)


def _make(path: Path) -> Indexed:
    try:
        mark = stamp(path)
        index = scan(path)
    except OSError as error:
        index = unreadable(error)
        return index, count(index, "")
    keep_index(index_folders(path.parent), path.name, mark, index)
    return index, count(index, mark)


def _make_counts(path: Path) -> Counts:
    return (_load(path, None) or _make(path))[1]


def _made(make: Callable[[Path], _Made], paths: Sequence[Path], timeout: float) -> dict[Path, _Made]:
    """`make` of each path; says so where it takes long."""
    made: dict[Path, _Made] = {}
    due = time.monotonic() + _SILENT
    for path, one in _in_processes(make, paths, timeout):
        made[path] = one
        if time.monotonic() > due:
            due = time.monotonic() + _BETWEEN
            say = f"diffclip: indexing {len(paths)} shards, which is done once: {len(made)} are ready"
            print(say, file=sys.stderr, flush=True)
    return made


def _in_processes(
    make: Callable[[Path], _Made], paths: Sequence[Path], timeout: float
) -> Iterator[tuple[Path, _Made]]:
    if len(paths) < _WORTH_PROCESSES:
        yield from ((path, make(path)) for path in paths)
        return
    # Headers are read by Python code, which threads would not do at once.
    processes = min(_MOST_PROCESSES, os.cpu_count() or 1)
    with multiprocessing.get_context("fork").Pool(processes, _let_end) as pool:
        pending: dict[Path, AsyncResult[_Made]] = {path: pool.apply_async(make, (path,)) for path in paths}
        for path, result in pending.items():
            try:
                yield path, result.get(timeout)
            except multiprocessing.TimeoutError:
                raise DiffCLIPError(
                    f"shard {path} could not be read for {timeout:g} seconds: see whether its disk answers, "
                    "or raise data.timeout"
                ) from None


def _let_end() -> None:
    """A signal handler of the parent's would keep this process from ending with the pool."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
