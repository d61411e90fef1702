"""Training images decoded once and kept in memory, for many small models that learn from the same images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from diffclip.data.corpus import Corpus, Sample
from diffclip.data.loader import Batch, CaptionLoader, Tokenizer, caption_of
from diffclip.data.order import seeds_of
from diffclip.data.transforms import Crop, TrainTransform
from diffclip.errors import Fault, InputError


def check_whole(corpus: Corpus) -> None:
    """Raise `InputError` unless all samples of `corpus` are at hand at once."""
    if corpus.window is not None:
        raise InputError(
            f"{corpus} is read window by window, and images in memory need all samples at hand: leave data.window "
            "out and give local shards, or train without images in memory"
        )


def _memory_of(device: torch.device) -> int:
    """The memory of a device, in bytes; for a CPU that of the machine, of which a job may have less."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _Kept(NamedTuple):
    """A sample in memory: its key, the size of its image, and which rows of the tokens are its captions'."""

    key: str
    height: int
    width: int
    captions: range


class MemoryLoader(CaptionLoader):
    """`CaptionLoader` with all images in one uint8 tensor [N, H, W, 3], smaller ones in the top left corner.

    Order, captions, crops and mirrors are those of `CaptionLoader` for the same seed. On a CPU batches are equal bit by
    bit. On a GPU the crops of a batch are made at once where the images lie (`resized_crops`), and values differ by 2
    of 255 at most.

    Args:
        corpus: where the samples are; not remote and without a window. All its images are decoded here.
        transform, tokenizer, batch_size, seed, rank, world: as in `CaptionLoader`.
        device: where the images lie and batches are made.

    Raises:
        InputError: as `CaptionLoader`; a corpus that is remote, has a window, or is larger than the memory of `device`.
    """

    def __init__(
        self,
        corpus: Corpus,
        transform: TrainTransform,
        tokenizer: Tokenizer,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        device: torch.device | None = None,
    ) -> None:
        check_whole(corpus)
        super().__init__(corpus, transform, tokenizer, batch_size, seed, rank=rank, world=world)
        self._device, self._transform = device or torch.device("cpu"), transform
        self._broken: dict[int, Fault] = {}
        self._kept: dict[int, _Kept] = {}
        whole: dict[int, Sample] = {}
        texts: list[str] = []
        height, width, limit = 0, 0, min(_memory_of(self._device), _memory_of(torch.device("cpu")))
        for i in range(corpus.samples):
            one = corpus.read(i)
            if isinstance(one, Fault):
                self._broken[i] = one
                continue
            whole[i], (_, tall, wide) = one, one.pixels.shape
            self._kept[i] = _Kept(one.key, tall, wide, range(len(texts), len(texts) + len(one.captions)))
            texts += one.captions
            height, width = max(height, tall), max(width, wide)
            if (size := corpus.samples * height * width * 3) > limit:
                raise InputError(
                    f"{corpus.samples} images padded to {height}×{width} take {size / 1e9:.3g} GB of memory, with "
                    f"{limit / 1e9:.3g} GB: shrink them with diffclip data make-shards --edge, or data.memory=false"
                )
        if not whole:
            raise InputError(
                f"every image in {corpus} is broken (first: {self._broken[0]}): replace the shards"
            )
        self._tokens = tokenizer(texts).to(self._device)
        self._images = torch.zeros(corpus.samples, height, width, 3, dtype=torch.uint8, device=self._device)
        while whole:  # no image stays in memory twice
            i, one = whole.popitem()
            self._images[i, : one.pixels.shape[1], : one.pixels.shape[2]] = one.pixels.permute(1, 2, 0)

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """This process's part of the batches of an epoch from `start_batch` on."""
        for items in self._items(epoch, start_batch):
            samples = (items % self.corpus.samples).tolist()
            seeds = seeds_of(self._seed, epoch, items).tolist()
            whole = [
                (i, seed, self._kept[i]) for i, seed in zip(samples, seeds, strict=True) if i in self._kept
            ]
            rows = [caption_of(seed, one.captions) for _, seed, one in whole]
            crops = [self._transform.draw(seed, one.height, one.width) for _, seed, one in whole]
            yield Batch(
                self._cut([i for i, _, _ in whole], crops),
                self._tokens[torch.tensor(rows, dtype=torch.int64).to(self._device, non_blocking=True)],
                [one.key for _, _, one in whole],
                [self._broken[i] for i in samples if i in self._broken],
            )

    def _cut(self, chosen: list[int], crops: list[Crop]) -> Tensor:
        size = self._transform.image_size
        if not chosen:
            return torch.empty(0, 3, size, size, dtype=torch.uint8, device=self._device)
        if self._device.type == "cpu":  # a crop lies within its image, so that what pads that is never read
            pairs = zip(chosen, crops, strict=True)
            return torch.stack(
                [self._transform.cut(self._images[i].permute(2, 0, 1), crop) for i, crop in pairs]
            )
        images = torch.tensor(chosen).to(self._device, non_blocking=True)
        boxes = torch.tensor(crops, dtype=torch.int64).to(self._device, non_blocking=True)
        return resized_crops(self._images, images, boxes, size, self._transform.interpolation)


def resized_crops(images: Tensor, chosen: Tensor, crops: Tensor, size: int, interpolation: str) -> Tensor:
    """Cut and resize the crops of a batch at once: `TrainTransform.cut` of each to within 2 of 255 in a photograph.

    A resize with a filter is linear along rows and along columns, so each crop is two matrix products with weights of
    its own, which are zero outside its box. The filters are those of torch's and Pillow's antialiased resize.

    Args:
        images: uint8 [N, H, W, 3], smaller ones in the top left corner.
        chosen: int64 [B], which images.
        crops: int64 [B, 5], the fields of `Crop`.
        size: S.
        interpolation: "bilinear" or "bicubic".

    Returns:
        uint8 [B, 3, S, S]. All tensors are on one device, which nothing waits for.
    """
    top, left, height, width, mirrored = crops.unbind(1)
    rows = _weights(top, height, images.shape[1], size, interpolation)
    columns = _weights(left, width, images.shape[2], size, interpolation)
    columns = torch.where(mirrored.bool()[:, None, None], columns.flip(1), columns)
    # in bytes between the two as well, as both libraries have it
    values = torch.einsum("bhwc,bsw->bchs", images[chosen].float(), columns).add_(0.5).floor_().clamp_(0, 255)
    values = torch.einsum("bchs,bth->bcts", values, rows).add_(0.5).floor_().clamp_(0, 255)
    return values.to(torch.uint8)


def _weights(start: Tensor, length: Tensor, extent: int, size: int, interpolation: str) -> Tensor:
    """The weight of each of `extent` pixels in each of `size`, float32 [B, size, extent], where the part of length
    `length` [B] from `start` [B] on is resized."""
    is_linear = interpolation == "bilinear"
    places = torch.arange(extent, device=start.device) - start[:, None]
    inside = (places >= 0) & (places < length[:, None])
    scale = (length / size)[:, None]
    centers = (torch.arange(size, device=start.device) + 0.5) * scale
    # one that is enlarged is filtered as wide as its own pixels are apart
    distance = (places[:, None] + 0.5 - centers[..., None]).abs() / scale.clamp(min=1)[..., None]
    weights = 1 - distance if is_linear else _cubic(distance)
    weights = weights * (inside[:, None] & (distance < (1 if is_linear else 2)))
    return weights / weights.sum(2, keepdim=True)


def _cubic(distance: Tensor) -> Tensor:
    """Keys (1981) with a = −1/2."""
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, far)
