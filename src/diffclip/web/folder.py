"""The searched folder: an index for each model, brought up to date in the background, and thumbnails."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from PIL import Image

from diffclip.data.images import SUFFIXES, read_image
from diffclip.errors import DiffCLIPError, InputError
from diffclip.model_source import Loaded
from diffclip.search import ImageIndex
from diffclip.web.overlay import photo_uri, thumbnail
from diffclip.web.uploads import lies_within

_THUMBNAIL = 240


class _StopError(Exception):
    """The page closes: an update ends where it is, and the next one goes on from there."""


@dataclass
class _State:
    """What is known of the update of one index."""

    line: str = "waiting for its turn"
    over: bool = False


class SearchedFolder:
    """Pictures of `folder` by each of `models`; any thread may ask, one at a time.

    Raises:
        InputError: `folder` is none, or holds no picture.
    """

    def __init__(self, folder: Path, models: Sequence[tuple[str, Loaded]]) -> None:
        self.folder = folder.resolve()
        if not _holds_picture(self.folder):
            raise InputError(
                f"no picture in folder {folder}: give --folder one with .jpg, .png, .webp and the like"
            )
        # what looks at a picture later takes a hand in the layers of its model, so the copies are made before
        self._indexes = {
            name: ImageIndex(self.folder, replace(loaded, model=copy.deepcopy(loaded.model)))
            for name, loaded in models
        }
        self._states = {name: _State() for name in self._indexes}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._update, name="index", daemon=True)

    def start(self) -> None:
        """Begin to bring the indexes up to date, in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """End the update where it is."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)

    @property
    def updating(self) -> bool:
        return not all(state.over for state in self._states.values())

    def status(self) -> str:
        """A line on each index."""
        several = len(self._states) > 1
        return " · ".join(
            f"{name}: {state.line}" if several else state.line for name, state in self._states.items()
        )

    def search(self, name: str, query: str | Image.Image, top: int) -> list[tuple[str, float, str | None]]:
        """What fits `query` by the model called `name`: file within the folder, cosine and thumbnail's address.

        The address is None for a picture that cannot be shown any more, or that a link leads to outside the folder.

        Raises:
            InputError: the text is empty, or the index cannot be read.
        """
        index = self._indexes[name]
        hits = index.search_text(query, top) if isinstance(query, str) else index.search_image(query, top)
        return [
            (str(hit.path.relative_to(self.folder)), hit.score, self._thumbnail(hit.path)) for hit in hits
        ]

    def _thumbnail(self, path: Path) -> str | None:
        if not lies_within(str(path), self.folder):
            return None
        try:
            return _thumbnail(path, path.stat().st_mtime_ns)
        except (InputError, OSError):
            return None

    def _update(self) -> None:
        for name, state in self._states.items():
            try:
                self._update_one(self._indexes[name], state)
            except _StopError:
                return
            except DiffCLIPError as error:
                state.line = f"not updated: {error}"
            except Exception as error:
                state.line = f"not updated: {type(error).__name__}: {error}"
            state.over = True

    def _update_one(self, index: ImageIndex, state: _State) -> None:
        done = 0

        def progress(what: str, more: int, total: int | None) -> None:
            nonlocal done
            if self._stop.is_set():
                raise _StopError
            if what == "images":
                done += more
                state.line = (
                    f"indexing, {done:,} of {total:,} pictures" if total else f"indexing, {done:,} pictures"
                )

        state.line = "looking for pictures"
        update = index.update(progress)
        skipped = f", {len(update.faults):,} skipped that cannot be read" if update.faults else ""
        state.line = f"{update.total:,} pictures{skipped}"


def _holds_picture(folder: Path) -> bool:
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if any(name.lower().endswith(SUFFIXES) and not name.startswith(".") for name in files):
            return True
    return False


@lru_cache(maxsize=1024)
def _thumbnail(path: Path, changed: int) -> str:
    return photo_uri(thumbnail(read_image(path), _THUMBNAIL))
