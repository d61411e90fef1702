"""A folder of images that can be searched by text and by image.

An index has two files. `images.jsonl` begins with a header, which names the folder, the model and the file of vectors.
Each further line is a file: `{"path": …, "size": …, "mtime": …}`, with `fault` if it is not an image. The float16
vectors [N, D] are those of the lines without a fault, in order. Both files are written whole, the vectors first and
under a new name, so that a reader finds either the old pair or the new pair.

Shapes: N images, D the width of the joint space.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from diffclip.data.images import find_images, read_image
from diffclip.data.transforms import Transform
from diffclip.data.workers import Progress, data_loader, watch_batches
from diffclip.errors import Fault, InputError, explain_errors, sample_fault
from diffclip.evaluation.embed import check_embeddings, embed_images, embed_texts, evaluation_mode
from diffclip.files import cache_folder, check_writable, digest_of, explain_disk_errors, write_atomically
from diffclip.model_source import Loaded
from diffclip.weights import weights_digest

LARGE = 1_000_000
"""Number of vectors from which FAISS is used, if installed. A query over a million vectors of 512 numbers takes 50 ms
instead of 150 ms on one core, but FAISS first needs 0.7 s and a copy of the vectors."""
_CHUNK = 256  # vectors; in float32 they stay in the cache of a core
_SAVE_SECONDS, _SAVE_SHARE = 5.0, 0.05
NAME = "images.jsonl"
_FORMAT = 2
_ABANDONED = 3600.0  # seconds after which an unused file of a killed process is removed


@dataclass(frozen=True)
class ImageFile:
    """A file below the folder: size in bytes, time of change in ns, and why it is not an image ("" if it is)."""

    path: str
    size: int
    mtime: int
    fault: str = ""


@dataclass(frozen=True)
class Contents:
    """The files that an index knows and their vectors float16 [N, D]; row i belongs to `images[i]`.

    `name` is the file of the vectors, "" before the first is written.
    """

    images: list[ImageFile]
    vectors: NDArray[np.float16]
    faulty: list[ImageFile] = field(default_factory=list)
    name: str = ""


@dataclass(frozen=True)
class Hit:
    """An image that was found: its path, below the folder, and its cosine with the query."""

    path: Path
    score: float


@dataclass(frozen=True)
class Update:
    """The numbers of added, changed and removed images, the files that are not images, and the number of images now."""

    added: int
    changed: int
    removed: int
    faults: list[Fault]
    total: int


class ImageIndex:
    """The index of a folder's images for one model. Nothing is written before `update` has found an image.

    One thread may update while others search; they find the images of the last save.
    """

    def __init__(self, folder: str | Path, loaded: Loaded, place: str | Path | None = None) -> None:
        """Open the index as the last update left it, or an empty index if there is none.

        Args:
            folder: folder of images, searched with all its subfolders.
            loaded: the model, on any device. Each model has an index of its own.
            place: the folder of the index; None: in the user's cache folder.

        Raises:
            InputError: `place` holds other files, or the index of another folder or model; the index is damaged.
        """
        self.folder = Path(folder).resolve()
        self.loaded = loaded
        config, transform = loaded.model.config, loaded.preprocess
        # identify the model and its preprocessing of images
        identity = {
            "config": config.model_dump(mode="json"),
            "weights": weights_digest(loaded.model),
            "transform": [transform.image_size, transform.preprocess.model_dump(mode="json")],
        }
        model, label = digest_of(identity), f"{loaded.label}, {loaded.weights}"
        # fields of the header: `model` is a digest, `label` the model's name for messages
        self._about = {"folder": str(self.folder), "model": model, "label": label, "width": config.embed_dim}
        key = hashlib.sha256(os.fsencode(self.folder) + b"\0" + model.encode()).hexdigest()[:20]
        self.place = cache_folder() / "search" / key if place is None else Path(place)
        self._contents = _read_index(self.place, self._about)
        self._faiss: tuple[Contents, Any] | None = None

    def __len__(self) -> int:
        """The number of images that can be found."""
        return len(self._contents.images)

    def faults(self) -> list[Fault]:
        """Return the files that are not images or are damaged."""
        return [Fault(file.path, file.fault) for file in self._contents.faulty]

    def update(self, progress: Progress | None = None, batch_size: int = 64, workers: int = 0) -> Update:
        """Embed files that are new or changed in size or time, and remove deleted files.

        The index is saved every few seconds, so that the next update continues from there if this one is stopped.

        Args:
            workers: processes that read images ahead; 0 reads in this process.

        Raises:
            InputError: there is no image in the folder (the index then stays as it is), the index cannot be written, or
                the model's embeddings are not finite.
            DiffCLIPError: a worker died.
        """
        on_disk = _list_files(self.folder)
        before = self._contents
        indexed = {file.path: file for file in [*before.images, *before.faulty]}
        pending = [file for path, file in on_disk.items() if not _is_same(indexed.get(path), file)]
        removed = len(indexed.keys() - on_disk.keys())
        if not pending and not removed:
            return Update(0, 0, 0, self.faults(), len(self))
        check_writable(self.place / NAME)
        rows = [row for row, file in enumerate(before.images) if _is_same(on_disk.get(file.path), file)]
        image_files, vectors = [before.images[row] for row in rows], [before.vectors[rows]]
        faulty = [file for file in before.faulty if _is_same(on_disk.get(file.path), file)]
        images = _Images(self.folder, pending, self.loaded.preprocess)
        loader = data_loader(images, workers, batch_size=batch_size, collate_fn=_collate)
        added = changed = 0
        last_save, save_seconds = time.monotonic(), 0.0
        for batch, pixels, broken in watch_batches(loader):
            if batch:
                with evaluation_mode(self.loaded.model):
                    embedded = check_embeddings(embed_images(self.loaded.model, pixels), "images")
                vectors.append(embedded.cpu().numpy().astype(np.float16))
            image_files += batch
            faulty += broken
            reindexed = sum(file.path in indexed for file in batch)
            added, changed = added + len(batch) - reindexed, changed + reindexed
            if progress:
                progress("images", len(batch) + len(broken), len(pending))
            if time.monotonic() - last_save > max(_SAVE_SECONDS, save_seconds / _SAVE_SHARE):
                started = time.monotonic()
                vectors = [self._save(image_files, vectors, faulty)]
                last_save = time.monotonic()
                save_seconds = last_save - started
        if added or changed or removed or faulty != before.faulty:
            self._save(image_files, vectors, faulty)
        return Update(added, changed, removed, self.faults(), len(self))

    def _save(
        self, images: list[ImageFile], vectors: list[NDArray[np.float16]], faulty: list[ImageFile]
    ) -> NDArray[np.float16]:
        """Write the index, let searches see it, and return its vectors [N, D] in one array."""
        name = f"vectors-{uuid.uuid4().hex[:8]}.npy"
        contents = Contents(list(images), np.concatenate(vectors), list(faulty), name)
        _write_index(self.place, self._about, contents, self._contents.name)
        self._contents = contents
        return contents.vectors

    def search_text(self, text: str, top: int) -> list[Hit]:
        """Find the images nearest to `text`, at most `top`, best first."""
        with evaluation_mode(self.loaded.model):
            return self._nearest(embed_texts(self.loaded.model, self.loaded.tokenizer, [text]), top)

    def search_image(self, image: Image.Image, top: int) -> list[Hit]:
        """Find the images nearest to `image`, at most `top`, best first."""
        with evaluation_mode(self.loaded.model):
            features = embed_images(self.loaded.model, self.loaded.preprocess(image)[None])
            return self._nearest(check_embeddings(features, "images"), top)

    def _nearest(self, query: Tensor, top: int) -> list[Hit]:
        """Find the images nearest to a unit vector [1, D], at most `top`, best first."""
        contents = self._contents
        scores, rows = self._best(contents, query[0].float().cpu(), min(top, len(contents.images)))
        # rounding to float16 may lift the cosine of an image with itself above 1
        hits = [
            Hit(self.folder / contents.images[row].path, max(-1.0, min(1.0, score)))
            for score, row in zip(scores, rows, strict=True)
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.path))

    def _best(self, contents: Contents, query: Tensor, top: int) -> tuple[list[float], list[int]]:
        """Return the `top` highest cosines with `query` [D], and their rows. Every vector is compared."""
        vectors = contents.vectors
        if len(vectors) >= LARGE and importlib.util.find_spec("faiss"):
            import faiss

            if self._faiss is None or self._faiss[0] is not contents:
                codes = faiss.ScalarQuantizer.QT_fp16
                index = faiss.IndexScalarQuantizer(vectors.shape[1], codes, faiss.METRIC_INNER_PRODUCT)
                # the codes of a float16 quantizer are the float16 numbers themselves
                index.add_sa_codes(np.ascontiguousarray(vectors).view(np.uint8))
                self._faiss = contents, index
            scores, rows = self._faiss[1].search(query.numpy()[None], top)
            return scores[0].tolist(), rows[0].tolist()
        cosines = torch.empty(len(vectors))
        for start in range(0, len(vectors), _CHUNK):
            chunk = torch.from_numpy(np.array(vectors[start : start + _CHUNK])).float()
            torch.mv(chunk, query, out=cosines[start : start + _CHUNK])
        best = cosines.topk(top)
        return best.values.tolist(), best.indices.tolist()


class _Images(Dataset[tuple[ImageFile, Tensor | None]]):
    def __init__(self, folder: Path, files: Sequence[ImageFile], transform: Transform) -> None:
        self.folder, self.files, self.transform = folder, files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[ImageFile, Tensor | None]:
        file = self.files[index]
        try:
            return file, self.transform(read_image(self.folder / file.path, file.path))
        except InputError as error:
            cause = error.__cause__ or error.__context__
            # if the system could not read the file, its content may be good: with mtime −1 the next update tries again
            unread = isinstance(cause, OSError) and cause.errno is not None
            fault = sample_fault(file.path, error).reason
            return replace(file, fault=fault, mtime=-1 if unread else file.mtime), None


def _collate(items: list[tuple[ImageFile, Tensor | None]]) -> tuple[list[ImageFile], Tensor, list[ImageFile]]:
    """Return the files with an image, their images [n, 3, S, S], and the files with a fault."""
    images = [image for _, image in items if image is not None]
    image_files = [file for file, image in items if image is not None]
    stacked = torch.stack(images) if images else torch.empty(0)
    return image_files, stacked, [file for file, image in items if image is None]


def _list_files(folder: Path) -> dict[str, ImageFile]:
    """Find the image files below `folder`: path in the folder → file with size and time."""
    files = {}
    for path in find_images([folder]):
        name = str(path.relative_to(folder))
        try:
            status = path.stat()
            files[name] = ImageFile(name, status.st_size, status.st_mtime_ns)
        except OSError:
            files[name] = ImageFile(name, 0, -1)  # `read_image` explains the fault
    if all(file.mtime == -1 for file in files.values()):  # keep the index if the disk is not mounted
        raise InputError(
            f"none of {len(files)} images in {folder} can be read: check that their disk is mounted and that "
            "links have targets"
        )
    return files


def _is_same(known: ImageFile | None, file: ImageFile) -> bool:
    return known is not None and (known.size, known.mtime) == (file.size, file.mtime)


def _read_index(place: Path, about: dict[str, Any]) -> Contents:
    """Read the index in the folder `place`, or return an empty index if there is none. Nothing is written."""
    if not (place / NAME).is_file():
        with explain_disk_errors(place):
            if place.exists() and not all(map(_is_part, place.iterdir())):
                raise InputError(f"{place} holds other files: choose a new or an empty folder for the index")
        return Contents([], np.empty((0, about["width"]), np.float16))
    with explain_errors(
        f"the index {place} is damaged", "remove that folder; the next search makes it again"
    ):
        try:
            return _read_files(place, about)
        except FileNotFoundError:  # another process has replaced the vectors meanwhile
            return _read_files(place, about)


def _read_files(place: Path, about: dict[str, Any]) -> Contents:
    with (place / NAME).open(encoding="utf-8") as lines:
        header = json.loads(next(lines, "{}"))
        if not isinstance(header, dict) or "format" not in header:
            raise InputError(f"{place} holds other files: choose a new or an empty folder for the index")
        if header["format"] != _FORMAT:
            raise InputError(
                f"{place} was made by another version of this program: remove it; the next search makes "
                "it again"
            )
        for key in ("folder", "model"):
            if header[key] != about[key]:
                actual = header["label" if key == "model" else "folder"]
                raise InputError(f"{place} is the index of another {key} ({actual}): choose another place")
        files = [ImageFile(**json.loads(line)) for line in lines]
    vectors = np.load(place / header["vectors"], mmap_mode="r")
    image_files = [file for file in files if not file.fault]
    if vectors.dtype != np.float16 or vectors.shape != (len(image_files), about["width"]):
        raise ValueError(f"{len(image_files)} images, but vectors {list(vectors.shape)} of {vectors.dtype}")
    return Contents(image_files, vectors, [file for file in files if file.fault], header["vectors"])


def _write_index(place: Path, about: dict[str, Any], contents: Contents, replaced: str) -> None:
    """Write an index to the folder `place`, whole or not at all; then remove `replaced`, its file of vectors before."""
    with write_atomically(place / contents.name) as temporary, temporary.open("wb") as handle:
        np.save(handle, contents.vectors)
    with write_atomically(place / NAME) as temporary, temporary.open("w", encoding="utf-8") as handle:
        handle.write(json.dumps({"format": _FORMAT, **about, "vectors": contents.name}) + "\n")
        for image in (*contents.images, *contents.faulty):
            fields = {key: value for key, value in vars(image).items() if value != ""}
            handle.write(json.dumps(fields) + "\n")
    with explain_disk_errors(place):
        for file in place.iterdir():
            with suppress(FileNotFoundError):  # another process has removed or renamed it meanwhile
                is_old = _is_part(file) and time.time() - file.stat().st_mtime > _ABANDONED
                if file.name == replaced or (is_old and file.name != contents.name):
                    file.unlink()


def _is_part(file: Path) -> bool:
    """Tell whether a save that was killed may have left the file."""
    return file.suffix == ".tmp" or file.match("vectors-*.npy")
