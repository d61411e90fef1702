"""Pictures of a source in order, for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffclip.data.samples import Fault, Transform, sample_fault
from diffclip.data.sources import Source
from diffclip.data.workers import leave_signals_to_parent, watched
from diffclip.errors import InputError


@dataclass
class PictureBatch:
    """images [B, 3, S, S] as the transform makes them, and their positions [B] in what was asked for."""

    images: Tensor
    positions: list[int]


def evaluation_batches(
    source: Source,
    indices: Sequence[int],
    transform: Transform,
    batch_size: int,
    faults: list[Fault],
    workers: int = 0,
    timeout: float = 0,
) -> Iterator[PictureBatch]:
    """The pictures `indices` of a source, in that order, up to `batch_size` at a time.

    A broken picture is left out and appended to `faults`; a batch of nothing else is not given. Workers that give
    nothing for `timeout` seconds are an error; 0 waits for ever.

    Raises:
        InputError: all pictures are broken.
        DiffCLIPError: a worker died.
    """
    loader: DataLoader[Any] = DataLoader(
        _Pictures(source, indices, transform),
        batch_size=batch_size,
        collate_fn=_collate,
        num_workers=workers,
        timeout=timeout if workers else 0,
        worker_init_fn=leave_signals_to_parent,
        # Without its own generator a DataLoader draws from the global one.
        generator=torch.Generator(),
    )
    read, broken = 0, []
    for batch, found in watched(loader):
        faults += found
        broken += found
        if batch is not None:
            read += len(batch.positions)
            yield batch
    if broken and not read:
        raise InputError(f"every picture in {source} is broken, the first one: {broken[0]}")


class _Pictures(Dataset[tuple[int, Tensor] | Fault]):
    def __init__(self, source: Source, indices: Sequence[int], transform: Transform) -> None:
        self.source, self.indices, self.transform = source, indices, transform

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> tuple[int, Tensor] | Fault:
        i = int(self.indices[position])
        try:
            picture = self.source.picture(i)
        except (InputError, OSError) as error:
            return sample_fault(self.source.name(i), error)
        return position, self.transform(picture)


def _collate(items: list[tuple[int, Tensor] | Fault]) -> tuple[PictureBatch | None, list[Fault]]:
    faults = [item for item in items if isinstance(item, Fault)]
    whole = [item for item in items if not isinstance(item, Fault)]
    if not whole:
        return None, faults
    positions, images = zip(*whole, strict=True)
    return PictureBatch(torch.stack(images), list(positions)), faults
