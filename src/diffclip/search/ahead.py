"""Files to outcomes: pictures are read ahead, embedded in batches, and what cannot be read is told apart."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffclip.data.images import read_image
from diffclip.data.samples import Transform, sample_fault
from diffclip.data.workers import leave_signals_to_parent, watched
from diffclip.errors import InputError
from diffclip.evaluation.embed import Encoder, checked, embed_images, evaluating
from diffclip.search.store import Outcome, Pending


def outcomes(
    folder: Path, batches: Iterable[list[Pending]], model: Encoder, transform: Transform, workers: int = 0
) -> Iterator[list[Outcome]]:
    """What comes of each batch of files in `folder`, a batch at a time.

    Args:
        batches: files; taken from it as they are needed, with workers two batches a worker ahead.
        transform: PIL RGB → [3, S, S].
        workers: processes that read; 0 reads in this one.

    Raises:
        InputError: the model's embeddings are not finite.
        DiffCLIPError: a worker died.
    """
    loader: DataLoader[Any] = DataLoader(
        _Files(folder, transform),
        batch_sampler=batches,
        collate_fn=_collate,
        num_workers=workers,
        worker_init_fn=_start_worker,
        # without its own generator a DataLoader draws from the global one
        generator=torch.Generator(),
    )
    for read, images, broken in watched(loader):
        found: list[Outcome] = broken
        if images is not None:
            with evaluating(model):
                embedded = checked(embed_images(model, images), "pictures").cpu().numpy().astype(np.float16)
            found = found + [Outcome(file, vector) for file, vector in zip(read, embedded, strict=True)]
        yield found


def _start_worker(worker: int) -> None:
    leave_signals_to_parent(worker)
    # What a picture raises goes to the parent. Only threads use this, about a parent that leaves while it is sent one.
    sys.excepthook = lambda kind, error, trace: None


class _Files(Dataset[tuple[Pending, Tensor] | Outcome]):
    def __init__(self, folder: Path, transform: Transform) -> None:
        self.folder, self.transform = folder, transform

    def __getitem__(self, file: Pending) -> tuple[Pending, Tensor] | Outcome:
        name = os.fsdecode(file.path)
        try:
            return file, self.transform(read_image(self.folder / name, name))
        except InputError as error:
            cause = error.__cause__ or error.__context__
            # of the system and not of the picture's content, which Pillow also tells with an OSError
            passing = isinstance(cause, OSError) and cause.errno is not None
            return Outcome(file, reason=sample_fault(name, error).reason, passing=passing)


def _collate(
    items: list[tuple[Pending, Tensor] | Outcome],
) -> tuple[list[Pending], Tensor | None, list[Outcome]]:
    broken = [item for item in items if isinstance(item, Outcome)]
    whole = [item for item in items if not isinstance(item, Outcome)]
    images = torch.stack([image for _, image in whole]) if whole else None
    return [file for file, _ in whole], images, broken
