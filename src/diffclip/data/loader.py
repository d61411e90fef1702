"""Batches of images and captions for training, in an order that depends on the seed alone.

`_Batches.__getitem__` shows from top to bottom how a batch is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from diffclip.data.dataset import DatasetPairs
from diffclip.data.order import Items, Steps, seeds_of, whole_epoch, windowed_epoch
from diffclip.data.pairs import Pairs
from diffclip.data.workers import data_loader, watch_batches
from diffclip.errors import DiffCLIPError, Fault, InputError

# Number of shards that are fetched at the same time, ahead of the workers.
_FETCHES = 4

CropTransform = Callable[[Tensor, int], Tensor]
Tokenizer = Callable[[list[str]], Tensor]


@dataclass
class Batch:
    """images uint8 [B, 3, S, S], tokens int64 [B, L], the number of tokens of each text up to its end [B], the keys of
    the samples [B], the faults of skipped samples. B is this process's part of the batch without these; it may be 0."""

    images: Tensor
    tokens: Tensor
    lengths: list[int]
    keys: list[str]
    faults: list[Fault]

    def __len__(self) -> int:
        return len(self.keys)

    def first(self, count: int) -> Batch:
        """Return the first `count` samples."""
        images, tokens = self.images[:count], self.tokens[:count]
        return Batch(images, tokens, self.lengths[:count], self.keys[:count], self.faults)

    def to(self, device: torch.device) -> Batch:
        """Return the batch with its tensors on `device`; from pinned memory, the copy does not block."""
        images, tokens = (tensor.to(device, non_blocking=True) for tensor in (self.images, self.tokens))
        return replace(self, images=images, tokens=tokens)

    def pin_memory(self) -> Batch:
        """Return the batch with its tensors in pinned memory (a DataLoader calls this)."""
        return replace(self, images=self.images.pin_memory(), tokens=self.tokens.pin_memory())


class CaptionLoader:
    """Load one process's part of each batch: images with one caption each, in an order drawn from (`seed`, epoch).

    The crop, and the choice among several captions, are drawn from (`seed`, epoch, sample, and how often the epoch has
    shown the sample). They depend neither on the workers nor on the batch at which an epoch starts. Without a window,
    the samples of a batch do not depend on the number of processes either.

    Args:
        transform: uint8 [3, H, W] and a seed in [0, 2^64) → uint8 [3, S, S].
        tokenizer: n texts → int64 [n, L].
        batch_size: samples per batch, over all processes; the last incomplete batch of an epoch is dropped.
        workers: processes that read ahead and outlive signals to the whole job; 0 reads in this process.
        rank, world: the number of this process, and how many processes share each batch.
        timeout: seconds without data from the workers after which an error is raised; not used for remote shards.
        pin_memory: put batches into pinned memory, from which a GPU copies without blocking.

    Attributes:
        samples: how many samples an epoch shows, over all processes.
        batches_per_epoch: how many batches an epoch has, the same number in every process.
        dropped: how many samples an epoch leaves out because they do not fill a batch, over all processes.
        faults: the broken shards, and samples without an image or a caption, that every epoch skips.

    Raises:
        InputError: fewer samples than `batch_size`, or a `batch_size` that the processes cannot share equally.
    """

    def __init__(
        self,
        pairs: Pairs | DatasetPairs,
        transform: CropTransform,
        tokenizer: Tokenizer,
        batch_size: int,
        seed: int,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        timeout: float = 300.0,
        pin_memory: bool = False,
    ) -> None:
        if batch_size % world:
            raise InputError(
                f"batch_size {batch_size} cannot be shared equally by {world} processes: make it a multiple of {world}"
            )
        tars = pairs.tars
        self.pairs, self.samples, self.faults = pairs, tars.layout.per_epoch, tars.faults
        if self.samples < batch_size:
            skipped = f" ({len(self.faults)} skipped, the first: {self.faults[0]})" if self.faults else ""
            raise InputError(
                f"{self.samples} samples with image and caption in {tars} are fewer than the batch size {batch_size}: "
                f"lower batch_size or give more shards{skipped}"
            )
        self.batches_per_epoch, self.dropped = divmod(self.samples, batch_size)
        self._steps = Steps(self.batches_per_epoch, batch_size, rank, world)
        self._seed, self._workers = seed, workers
        self._jobs = _BatchJobs()
        self._fetching = ThreadPoolExecutor(_FETCHES)
        self._loader = data_loader(
            _Batches(pairs, transform, tokenizer, seed),
            workers,
            0 if tars.is_remote else timeout,
            sampler=self._jobs,
            batch_size=None,  # a job is a batch
            persistent_workers=workers > 0,
            pin_memory=pin_memory,
        )

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Yield this process's part of the batches of an epoch from `start_batch` on, without reading earlier ones.

        With workers, the start of an epoch ends the previous epoch, because all epochs share the workers. A worker that
        died, or no data within `timeout`, raises `DiffCLIPError`.
        """
        jobs = self._jobs.now = ((epoch, items) for items in self._items(epoch, start_batch))
        for batch in watch_batches(self._loader):
            yield batch
            if self._workers and self._jobs.now is not jobs:
                raise DiffCLIPError("another epoch of this loader was started: use a second loader for it")

    def close(self) -> None:
        """Stop fetching shards."""
        self._fetching.shutdown(wait=False, cancel_futures=True)

    def _items(self, epoch: int, start: int) -> Iterator[Items]:
        layout, window = self.pairs.tars.layout, self.pairs.tars.window
        if window is None:
            return whole_epoch(layout, self._steps, self._seed, epoch, start)
        return windowed_epoch(layout, self._steps, window, self._seed, epoch, start, self._fetch)

    def _fetch(self, shards: list[int]) -> None:
        """Fetch remote shards in this order in the background."""
        for number in shards if self.pairs.tars.is_remote else ():
            self._fetching.submit(self.pairs.fetch, number)


_BatchJob = tuple[int, Items]
"""An epoch, and the items of one process's part of a batch. The epoch is included because workers outlive it."""


class _BatchJobs:
    """The sampler: each pass over the loader yields the jobs of the epoch in `now`.

    Jobs are made only after the workers have started: making them starts threads, and threads make forking unsafe.
    """

    now: Iterator[_BatchJob]

    def __iter__(self) -> Iterator[_BatchJob]:
        return self.now


class _Batches(Dataset[Any]):
    def __init__(
        self, pairs: Pairs | DatasetPairs, transform: CropTransform, tokenizer: Tokenizer, seed: int
    ) -> None:
        self.pairs, self.transform, self.tokenizer, self.seed = pairs, transform, tokenizer, seed

    def __getitem__(self, job: _BatchJob) -> Batch | DiffCLIPError:
        """Make a batch, or return an error for `watch_batches`."""
        epoch, items = job
        keys, images, captions, faults = [], [], [], []
        seeds = seeds_of(self.seed, epoch, items)
        try:
            for item, seed in zip(items.tolist(), seeds.tolist(), strict=True):
                sample = self.pairs[item % len(self.pairs)]
                if isinstance(sample, Fault):
                    faults.append(sample)
                    continue
                keys.append(sample.key)
                images.append(self.transform(sample.pixels, seed))
                # the upper bits of the seed choose a caption
                captions.append(sample.captions.draw(seed >> 32))
        except DiffCLIPError as error:
            return error
        if not keys:
            blank = self.transform(torch.zeros(3, 8, 8, dtype=torch.uint8), 0)
            return Batch(blank[None][:0], self.tokenizer([""])[:0], [], [], faults)
        tokens = self.tokenizer(captions)
        lengths = (tokens.numpy().argmax(1) + 1).tolist()  # the end of a text is its largest id
        # In a worker, `default_collate` writes directly into the memory that the processes share.
        return Batch(default_collate(images), tokens, lengths, keys, faults)
