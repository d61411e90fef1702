"""Image files to vectors: images are read ahead, by worker processes where there are some, and embedded in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from diffclip.data.images import read_image
from diffclip.data.transforms import Transform
from diffclip.data.workers import data_loader, watched
from diffclip.errors import InputError, sample_fault
from diffclip.evaluation.embed import checked, embed_images, evaluating
from diffclip.model_source import Loaded
from diffclip.search.files import ImageFile

Batch = tuple[list[ImageFile], NDArray[np.float16], list[ImageFile]]


def embed_files(
    folder: Path, files: Sequence[ImageFile], loaded: Loaded, batch_size: int, workers: int
) -> Iterator[Batch]:
    """Embed the images of `files`, a batch at a time: files, their vectors float16 [n, D], and those with a fault.

    Raises:
        InputError: the model's embeddings are not finite.
        DiffCLIPError: a worker died.
    """
    dataset = _Images(folder, files, loaded.preprocess)
    loader = data_loader(dataset, workers, batch_size=batch_size, collate_fn=_collate)
    for found, images, faulty in watched(loader):
        vectors = np.empty((0, loaded.model.config.embed_dim), np.float16)
        if found:
            with evaluating(loaded.model):
                vectors = (
                    checked(embed_images(loaded.model, images), "images").cpu().numpy().astype(np.float16)
                )
        yield found, vectors, faulty


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
            # the system could not read the file, which says nothing about its content: mtime −1 is never up to date
            unread = isinstance(cause, OSError) and cause.errno is not None
            fault = sample_fault(file.path, error).reason
            return replace(file, fault=fault, mtime=-1 if unread else file.mtime), None


def _collate(items: list[tuple[ImageFile, Tensor | None]]) -> tuple[list[ImageFile], Tensor, list[ImageFile]]:
    images = [image for _, image in items if image is not None]
    found = [file for file, image in items if image is not None]
    return (
        found,
        torch.stack(images) if images else torch.empty(0),
        [file for file, image in items if image is None],
    )
