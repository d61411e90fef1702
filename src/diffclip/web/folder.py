"""Search a folder of images: one index per model, which is updated in the background, and thumbnails."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from PIL import Image

from diffclip.data.images import find_images, read_image
from diffclip.errors import InputError, StoppedError
from diffclip.search import ImageIndex
from diffclip.web.results import PageModel, image_uri

_THUMBNAIL = 240


class SearchedFolder:
    """Search the images of `folder` with each of `models`, while a thread updates the indexes."""

    def __init__(self, folder: Path, models: Sequence[PageModel]) -> None:
        find_images([folder])
        # `look` records attention in the layers of its model, so each index gets its own copy of the model
        self._indexes = {
            model.name: ImageIndex(folder, replace(model.loaded, model=copy.deepcopy(model.loaded.model)))
            for model in models
        }
        self.folder = folder.resolve()
        self.updating = True
        self._lines = dict.fromkeys(self._indexes, "waiting for its turn")
        self._closing = False
        self._thread = threading.Thread(target=self._update, name="index", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the update; the next update continues from there."""
        self._closing = True
        self._thread.join(timeout=10)

    def status(self) -> str:
        """Return the state of all indexes, in one line."""
        several = len(self._lines) > 1
        return " · ".join(f"{name}: {line}" if several else line for name, line in self._lines.items())

    def search(self, name: str, query: str | Image.Image, top: int) -> list[tuple[str, float, str | None]]:
        """Find images with the model `name`: file within the folder, cosine and the thumbnail's address.

        The address is None for an image that cannot be read, and for a link to a file outside the folder.
        """
        index = self._indexes[name]
        hits = index.search_text(query, top) if isinstance(query, str) else index.search_image(query, top)
        return [
            (str(hit.path.relative_to(index.folder)), hit.score, self._thumbnail(hit.path)) for hit in hits
        ]

    def _thumbnail(self, path: Path) -> str | None:
        if not path.resolve().is_relative_to(self.folder):
            return None
        try:
            return _thumbnail(path, path.stat().st_mtime_ns)
        except (InputError, OSError):
            return None

    def _update(self) -> None:
        for name, index in self._indexes.items():
            done = 0

            def progress(kind: str, count: int, total: int | None, name: str = name) -> None:
                nonlocal done
                if self._closing:
                    raise StoppedError("the page closes")
                done += count
                self._lines[name] = f"indexing, {done:,} of {total:,} images"

            self._lines[name] = "looking for images"
            try:
                update = index.update(progress, batch_size=16)
            except StoppedError:
                return
            # the page keeps working without the rest of this index
            except Exception as error:
                self._lines[name] = f"not updated: {error}"
                continue
            skipped = f", {len(update.faults):,} skipped that cannot be read" if update.faults else ""
            self._lines[name] = f"{update.total:,} images{skipped}"
        self.updating = False


@lru_cache(maxsize=1024)
def _thumbnail(path: Path, changed: int) -> str:
    image = read_image(path)
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    return image_uri(image)
