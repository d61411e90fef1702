"""A folder of pictures that can be searched by text and by picture.

Shapes: D the joint width.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from diffclip.data.samples import Fault
from diffclip.errors import InputError
from diffclip.evaluation.embed import Progress, checked, embed_images, embed_texts, evaluating
from diffclip.evaluation.features import digest_of
from diffclip.files import cache_folder
from diffclip.model_source import Loaded
from diffclip.search.ahead import outcomes
from diffclip.search.compact import CompactVectors
from diffclip.search.lock import updating
from diffclip.search.scan import Entry, Unreadable, real_folder, scan
from diffclip.search.store import Outcome, Pending, Store


@dataclass(frozen=True)
class Hit:
    """A picture that was found: its absolute path within the folder, and the cosine with what was asked."""

    path: Path
    score: float


@dataclass(frozen=True)
class Update:
    """What an update did: pictures that are new, that had changed and that are gone; what was skipped; how many there
    are now."""

    added: int
    changed: int
    removed: int
    faults: list[Fault]
    total: int


class PictureIndex:
    """The index of a folder by one model. See `open`.

    Any thread may use it, one at a time.
    """

    def __init__(self, folder: Path, loaded: Loaded, store: Store) -> None:
        self.folder, self.place, self.loaded = folder, store.place, loaded
        self._store = store
        self._vectors = CompactVectors(store.width)

    @classmethod
    def open(cls, folder: str | Path, loaded: Loaded, place: str | Path | None = None) -> Self:
        """The index of `folder` by the model `loaded`, as the last update left it; an empty one if there is none.

        Args:
            folder: pictures, at any depth.
            loaded: the model, on any device. Another one, or one trained further, has an index of its own.
            place: the folder where the index lies; None: in the user's cache folder.

        Raises:
            InputError: `folder` is none; `place` cannot be written, holds something else, or the index of another
                folder or model; the index is damaged.
        """
        real = real_folder(folder)
        model = _model_stamp(loaded)
        if place is None:
            key = hashlib.sha256(os.fsencode(real) + b"\0" + model.encode()).hexdigest()[:20]
            place = cache_folder() / "search" / key
        label = f"{loaded.label}, {loaded.weights}"
        return cls(real, loaded, Store(Path(place), real, model, label, loaded.model.config.embed_dim))

    def update(self, progress: Progress | None = None, batch_size: int = 64, workers: int = 0) -> Update:
        """Bring the index up to date: files that are new or have another size or time are embedded, those that are
        gone are forgotten.

        Each batch is kept when it is done, so an update that is stopped, however it is, goes on from there. A broken
        picture is not tried again until its file changes; one that the system does not let us read is.

        Args:
            progress: told of the files looked at ("files") and of pictures done ("pictures").
            batch_size: pictures at once.
            workers: processes that read pictures ahead; 0 reads in this one.

        Raises:
            BusyError: another process updates this index.
            InputError: there is no picture in the folder (the index then stays as it is), the folder or the index
                cannot be read or written, or the model's embeddings are not finite.
            DiffCLIPError: a worker died.
        """
        unreadable: list[Unreadable] = []
        entries = scan(self.folder, unreadable)

        def embed(batches: Iterable[list[Pending]]) -> Iterator[list[Outcome]]:
            return outcomes(self.folder, batches, self.loaded.model, self.loaded.preprocess, workers)

        with updating(self.place):
            return update_store(self._store, self.folder, entries, unreadable, embed, batch_size, progress)

    def search_text(self, text: str, top: int) -> list[Hit]:
        """The pictures nearest to `text`, at most `top`, best first.

        Raises:
            InputError: the text is empty, its embedding is not finite, or the index is damaged.
        """
        check_text(text)
        with evaluating(self.loaded.model):
            return self._nearest(embed_texts(self.loaded.model, self.loaded.tokenizer, [text]), top)

    def search_image(self, picture: Image.Image, top: int) -> list[Hit]:
        """The pictures nearest to `picture`, at most `top`, best first.

        Raises:
            InputError: its embedding is not finite, or the index is damaged.
        """
        with evaluating(self.loaded.model):
            images = self.loaded.preprocess(picture)[None]
            return self._nearest(checked(embed_images(self.loaded.model, images), "pictures"), top)

    def __len__(self) -> int:
        """The number of pictures that can be found."""
        return len(self._store)

    def faults(self) -> list[Fault]:
        """The files known to be no whole pictures."""
        return self._store.faults()

    def close(self) -> None:
        """Let go of the files."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _nearest(self, query: Tensor, top: int) -> list[Hit]:
        """The hits for a unit vector [1, D]."""
        if top < 1:
            raise InputError(f"top is {top}: ask for one picture or more")
        vector: NDArray[np.float32] = query[0].float().cpu().numpy()
        self._vectors.refresh(self._store)
        found = self._vectors.search(vector, top)
        paths = self._store.paths([number for number, _ in found])
        hits = [
            # rounding to float16 may lift the cosine of a picture with itself above 1
            Hit(self.folder / os.fsdecode(paths[number]), max(-1.0, min(1.0, score)))
            for number, score in found
            # another process may have forgotten it a moment ago
            if number in paths
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.path))


def check_text(text: str) -> None:
    """Raise `InputError` for a text without a word in it."""
    if not text.strip():
        raise InputError("the text to search for is empty: write what the pictures are to show")


def update_store(
    store: Store,
    folder: Path,
    entries: Iterable[Entry],
    unreadable: list[Unreadable],
    embed: Callable[[Iterable[list[Pending]]], Iterator[list[Outcome]]],
    batch_size: int,
    progress: Progress | None = None,
) -> Update:
    """Make a store hold what `entries` gives and `embed` makes of it; see `PictureIndex.update`.

    Args:
        unreadable: what `entries`, when it is used up, has found that cannot be looked at.
        embed: batches of files to what comes of them, in any order and size.
    """
    files = 0
    for count in store.note(entries):
        files += count
        if progress:
            progress("files", count, None)
    if not files:
        more = f" ({len(unreadable)} folders or files in it cannot be read)" if unreadable else ""
        raise InputError(f"no picture in folder {folder}{more}: they end in .jpg, .png, .webp and the like")
    pending, removed = store.compare(unreadable)
    added = changed = 0
    passing = [one.fault() for one in unreadable]
    for batch in embed(store.pending(batch_size)):
        store.put(batch)
        known = [one.file.known for one in batch if one.vector is not None]
        changed += sum(known)
        added += len(known) - sum(known)
        passing += [Fault(os.fsdecode(one.file.path), one.reason) for one in batch if one.passing]
        if progress:
            progress("pictures", len(batch), pending)
    return Update(added, changed, removed, store.faults() + passing, len(store))


def _model_stamp(loaded: Loaded) -> str:
    """What tells the model and what it is given from others."""
    transform = loaded.preprocess
    stamp = {
        "config": loaded.model.config.model_dump(mode="json"),
        "weights": digest_of(loaded.model),
        "transform": [transform.image_size, transform.preprocess.model_dump(mode="json")],
    }
    return hashlib.sha256(json.dumps(stamp, sort_keys=True).encode()).hexdigest()
