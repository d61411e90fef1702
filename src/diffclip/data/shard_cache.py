"""Local copies of remote shards, in a folder that the processes of a machine share."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from diffclip.data.remote import base_name, fetch, parts_of, shown
from diffclip.data.remote_child import PAUSES, StoppedError, marks_of, never
from diffclip.data.shard_folder import POLL, acquire, copies_in, listed, publish, release, sweep
from diffclip.errors import DiffCLIPError, InputError
from diffclip.files import disk_errors


class ShardCache:
    """Whole local copies of remote shards.

    The object may be forked or pickled to data workers, which then call `path` only. Several processes may use one
    folder: a shard is fetched once for all of them.

    A copy from an earlier run is used if the place says that the file is still the same; what the place says is asked
    once in the life of the object. Where it says nothing (a pipe), each run fetches anew.
    """

    def __init__(self, folder: str | Path, limit: int | None, stall: float) -> None:
        """
        Args:
            folder: where copies lie; made when needed.
            limit: bytes that copies may take, above which the oldest are removed; None: only copies of what
                `ahead` names are kept, until `close`.
            stall: seconds after which a source that gives nothing is an error.
        """
        self.folder, self.limit, self.stall = Path(folder).expanduser().absolute(), limit, stall
        self._since = time.time()
        self._owner: int | None = os.getpid()
        self._list: tuple[Path, int] | None = None
        self._reader: _Reader | None = None

    def path(self, url: str) -> Path:
        """A whole copy of `url`, unpacked if the shard is compressed; fetched now if there is none.

        Open it soon: a copy that is in no process's list may be removed. One that is open stays readable.

        Raises:
            InputError: it does not exist, may not be read, or the folder cannot take it.
            DiffCLIPError: nothing came for `stall` seconds, or the connection was lost time and again.
        """
        return self._copy(url, never)

    def ahead(self, urls: Sequence[str]) -> None:
        """From now on fetch `urls`, in this order, in the background, as far as `limit` allows.

        They replace those of the call before. Copies of what no process lists are removed: without a limit at once,
        with one when there is more than that. What cannot be fetched is left for `path` to report.

        Raises:
            InputError: the folder cannot be written.
            RuntimeError: called in another process than the one that made the object.
        """
        if self._owner != os.getpid():
            raise RuntimeError("only the process that made a ShardCache reads ahead")
        urls = list(dict.fromkeys(urls))
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            before, self._list = self._list, publish(self.folder, [_key(url) for url in urls])
            if before is not None:
                release(*before)
            self._evict()
        if self._reader is None:
            self._reader = _Reader(self._copy, self._full)
        self._reader.replace(urls)

    def close(self) -> None:
        """End the reading ahead; without a limit, remove the copies. In a data worker it does nothing."""
        if self._owner != os.getpid():
            return
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._list is not None:
            release(*self._list)
            self._list = None
        if self.limit is None and self.folder.is_dir():
            with disk_errors(self.folder):
                self._evict()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_owner": None, "_list": None, "_reader": None}

    def _copy(self, url: str, stopped: Callable[[], bool]) -> Path:
        key = _key(url)
        found = self._verified(key)
        if found is not None:
            return found
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            before = marks_of([self._note(key)])
            with self._turn(url, stopped):
                found = self._verified(key)
                if found is not None:
                    return found
                failure = self._read_note(key).get("error")
                if failure is not None and marks_of([self._note(key)]) != before:
                    # The one that had the turn has waited for it, too.
                    raise (InputError if failure["input"] else DiffCLIPError)(failure["message"])
                found = self._fetch(url, stopped)
            if self.limit is not None:
                self._evict(keep={key})
            return found

    def _fetch(self, url: str, stopped: Callable[[], bool]) -> Path:
        """Fetch `url` unless the place says that the copy is as good; only for the one whose turn it is."""
        key, last = _key(url), self._read_note(_key(url))
        # A name of its own: the child of a fetch that was killed may write for a moment after that.
        part = self.folder / f".{key}.part-{uuid.uuid4().hex}"
        known = last["stamp"] if "name" in last and (self.folder / last["name"]).is_file() else None
        try:
            stamp, fetched = fetch(url, part, self.stall, known, stopped=stopped)
            name = f"{key}-{_digest(stamp)[:8]}-{base_name(url)}"
            if fetched:
                os.replace(part, self.folder / name)
                for copy in self.folder.glob(f"{key}-*"):
                    if copy.name != name:
                        copy.unlink(missing_ok=True)
            self._write_note(key, {"name": name, "stamp": stamp})
            return self.folder / name
        except DiffCLIPError as error:
            failure = {"message": str(error), "input": isinstance(error, InputError)}
            self._write_note(key, {"error": failure})
            raise
        finally:
            for file in parts_of(part):
                file.unlink(missing_ok=True)

    def _full(self, urls: Sequence[str]) -> bool:
        """Whether copies of `urls` alone reach the limit."""
        if self.limit is None:
            return False
        keys = {_key(url) for url in urls}
        return sum(copy.size for copy in copies_in(self.folder) if copy.key in keys) >= self.limit

    @contextmanager
    def _turn(self, url: str, stopped: Callable[[], bool]) -> Iterator[None]:
        """Wait until no other process fetches `url`, and keep others waiting."""
        key = _key(url)
        lock = self.folder / f".{key}.lock"
        # Between two changes of the parts lie at most an attempt that brings nothing and a pause.
        patience = self.stall + sum(PAUSES)
        seen, since = None, time.monotonic()
        while (held := acquire(lock)) is None:
            if stopped():
                raise StoppedError
            mark = marks_of(sorted(self.folder.glob(f".{key}.part*")))
            if mark != seen:
                seen, since = mark, time.monotonic()
            elif time.monotonic() - since > patience:
                raise DiffCLIPError(
                    f"{shown(url)} gave nothing for {patience:g} seconds to the process that fetches it: "
                    "end that process, or give another folder for copies"
                )
            time.sleep(POLL)
        try:
            yield
        finally:
            release(lock, held)

    def _verified(self, key: str) -> Path | None:
        """The copy, if since this object was made it has been fetched or found to be as good."""
        try:
            fresh = self._note(key).stat().st_mtime >= self._since
        except OSError:
            return None
        name = self._read_note(key).get("name")
        return self.folder / name if fresh and name and (self.folder / name).is_file() else None

    def _note(self, key: str) -> Path:
        return self.folder / f".{key}.note"

    def _read_note(self, key: str) -> dict[str, Any]:
        try:
            note: dict[str, Any] = json.loads(self._note(key).read_text(encoding="utf-8"))
            return note
        except (OSError, ValueError):
            return {}

    def _write_note(self, key: str, note: dict[str, Any]) -> None:
        part = self.folder / f".{key}.part.note"
        part.write_text(json.dumps(note), encoding="utf-8")
        os.replace(part, self._note(key))

    def _evict(self, keep: Collection[str] = ()) -> None:
        """Remove copies that are too much, oldest first, none that is listed or in `keep`; and leftovers."""
        wanted = listed(self.folder) | set(keep)
        copies = sorted(copies_in(self.folder))
        total = sum(copy.size for copy in copies)
        kept = set()
        for copy in copies:
            if copy.key in wanted or (self.limit is not None and total <= self.limit):
                kept.add(copy.key)
            else:
                copy.path.unlink(missing_ok=True)
                total -= copy.size
        sweep(self.folder, kept)


class _Reader:
    """A thread that fetches what the latest list names."""

    def __init__(
        self,
        copy: Callable[[str, Callable[[], bool]], Path],
        full: Callable[[Sequence[str]], bool],
    ) -> None:
        self._copy, self._full = copy, full
        self._urls: Sequence[str] = ()
        self._new, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="shards ahead", daemon=True)
        self._thread.start()

    def replace(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._new.set()

    def close(self) -> None:
        self._closed = True
        self.replace(())
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            self._new.wait()
            self._new.clear()
            urls = self._urls
            for url in urls:
                if self._new.is_set() or self._full(urls):
                    break
                # Whoever needs it is told by `path`.
                with suppress(DiffCLIPError, StoppedError):
                    self._copy(url, partial(self._unwanted, url))

    def _unwanted(self, url: str) -> bool:
        return url not in self._urls


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _key(url: str) -> str:
    return _digest(url)[:16]
