"""Pictures of a source in order, for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffclip.config import PreprocessConfig
from diffclip.data.samples import Fault, Transform, sample_fault
from diffclip.data.sources import Source
from diffclip.data.transforms import normalise
from diffclip.data.workers import leave_signals_to_parent, watched
from diffclip.errors import InputError

if TYPE_CHECKING:
    from diffclip.data.kept_pictures import KeptPictures


@dataclass
class PictureBatch:
    """images [B, 3, S, S] as the transform makes them, and their positions [B] in what was asked for."""

    images: Tensor
    positions: list[int]


@runtime_checkable
class PixelTransform(Protocol):
    """A transform that normalises last: calling it gives `normalise(pixels(picture)[None], preprocess)[0]`."""

    image_size: int
    preprocess: PreprocessConfig

    def pixels(self, picture: Image.Image) -> Tensor:
        """uint8 [3, S, S]."""
        ...

    @property
    def identity(self) -> list[object]:
        """What `pixels` depends on beside the picture; JSON can hold it."""
        ...


_keeper: ContextVar[KeptPictures | None] = ContextVar("keeper of transformed pictures", default=None)


@contextmanager
def keeping(keeper: KeptPictures | None) -> Iterator[None]:
    """Within the block `evaluation_batches` takes transformed pictures from `keeper`; None reads them each time."""
    token = _keeper.set(keeper)
    try:
        yield
    finally:
        _keeper.reset(token)


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
    keeper, known = _keeper.get(), _known(transform)
    if keeper is not None and known is not None:
        pixels = known.pixels

        def whole() -> Iterator[Tensor | None]:
            for batch, found in _read(source, indices, pixels, batch_size, workers, timeout):
                yield None if found or batch is None else batch.images

        kept = keeper.find(source, indices, known, whole)
        if kept is not None:
            for start in range(0, len(kept), batch_size):
                part = kept[start : start + batch_size]
                positions = list(range(start, start + len(part)))
                yield PictureBatch(normalise(part, known.preprocess), positions)
            return
    read, broken = 0, []
    for batch, found in _read(source, indices, transform, batch_size, workers, timeout):
        faults += found
        broken += found
        if batch is not None:
            read += len(batch.positions)
            yield batch
    if broken and not read:
        raise InputError(f"every picture in {source} is broken, the first one: {broken[0]}")


def _known(transform: object) -> PixelTransform | None:
    return transform if isinstance(transform, PixelTransform) else None


def _read(
    source: Source,
    indices: Sequence[int],
    transform: Transform,
    batch_size: int,
    workers: int,
    timeout: float,
) -> Iterator[tuple[PictureBatch | None, list[Fault]]]:
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
    return watched(loader)


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
