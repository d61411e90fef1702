"""Batches of images and captions for training, in an order that depends on the seed alone.

Everything about sample i of an epoch is drawn from (seed, epoch, i), so an epoch can be entered at any batch without
reading those before it. `_Batches.__getitems__` makes a batch from top to bottom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from diffclip.data.corpus import Corpus
from diffclip.data.images import read_pixels
from diffclip.data.order import Items, Steps, WholeEpoch, WindowedEpoch, seeds_of
from diffclip.data.workers import data_loader, watched
from diffclip.errors import DiffCLIPError, Fault, InputError, sample_fault

CropTransform = Callable[[Tensor, int], Tensor]
Tokenizer = Callable[[list[str]], Tensor]


@dataclass
class Batch:
    """images uint8 [B, 3, S, S], tokens int64 [B, L], the keys of the samples [B], and the faults of skipped ones.

    B is this process's part of the batch size less the broken samples, which may leave 0.
    """

    images: Tensor
    tokens: Tensor
    keys: list[str]
    faults: list[Fault]

    def __len__(self) -> int:
        return len(self.keys)


class CaptionLoader:
    """Images with one caption each, in an order drawn from (`seed`, epoch); one process's part of each batch.

    Crops, and the choice among several captions, are drawn from (`seed`, epoch, sample, and how often the epoch has
    shown it): they depend neither on the workers nor on the batch that an epoch is entered at. Without a window, nor
    does it depend on the number of processes which samples make a batch.

    Args:
        corpus: where the samples are. With a window each process shuffles that many shards at a time.
        transform: uint8 [3, H, W] and a seed in [0, 2^64) → uint8 [3, S, S].
        tokenizer: n texts → int64 [n, L].
        batch_size: samples a batch, over all processes; the last incomplete batch of an epoch is dropped.
        seed: not negative.
        workers: processes that read ahead, which signals to the whole job do not end; 0 reads in this one.
        rank: the number of this process.
        world: how many processes share each batch.
        timeout: seconds after which workers that give nothing are an error; not for remote shards.

    Attributes:
        corpus: where the samples are.
        samples: how many samples an epoch shows, over all processes.
        batches_per_epoch: how many batches an epoch has, the same number in every process.
        dropped: how many samples an epoch leaves out because they do not fill a batch, over all processes.
        faults: what is skipped in every epoch: broken shards, samples without an image or a caption.

    Raises:
        InputError: fewer samples than `batch_size`, or one that the processes cannot share equally.
    """

    def __init__(
        self,
        corpus: Corpus,
        transform: CropTransform,
        tokenizer: Tokenizer,
        batch_size: int,
        seed: int,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        timeout: float = 300.0,
    ) -> None:
        self._steps = steps_of(corpus, batch_size, rank, world)
        self.faults, self.samples = corpus.faults, corpus.per_epoch
        self.batches_per_epoch, self.dropped = self._steps.batches, self.samples % batch_size
        self.corpus, self._seed, self._workers = corpus, seed, workers
        self._jobs = _Jobs()
        self._loader = data_loader(
            _Batches(corpus, transform, tokenizer, seed),
            workers,
            0 if corpus.is_remote else timeout,
            batch_sampler=self._jobs,
            collate_fn=_as_it_is,
            persistent_workers=workers > 0,
        )

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Yield this process's part of the batches of an epoch from `start_batch` on, without reading earlier ones.

        With workers, which all epochs share, starting an epoch ends the one before.

        Raises:
            DiffCLIPError: a worker died, another epoch was started meanwhile, or no data came for the time set.
        """
        order = self._order(epoch)
        mine = self._jobs.now = (epoch, order, start_batch)
        batches = watched(self._loader)
        window = -1
        for number, batch in enumerate(batches, start_batch + 1):
            if isinstance(batch, DiffCLIPError):
                raise batch
            # After the workers have started: a process with a thread that fetches is better not forked.
            if self.corpus.is_remote and order.window(number) != window:
                window = order.window(number)
                # this window and the next one, which may be the first of the next epoch
                following = order.shards(window + 1) or self._order(epoch + 1).shards(0)
                self.corpus.ahead([*order.shards(window), *following])
            yield batch
            if self._workers and self._jobs.now is not mine:
                raise DiffCLIPError("another epoch of this loader was started: use a second loader for it")

    def close(self) -> None:
        """Stop fetching shards."""
        self.corpus.close()

    def _order(self, epoch: int) -> WholeEpoch | WindowedEpoch:
        if self.corpus.window is None:
            return WholeEpoch(self.corpus.layout, self._steps, self._seed, epoch)
        return WindowedEpoch(self.corpus.layout, self._steps, self.corpus.window, self._seed, epoch)


def steps_of(corpus: Corpus, batch_size: int, rank: int, world: int) -> Steps:
    """Work out which part of each batch of `batch_size` process `rank` of `world` reads.

    Raises:
        InputError: fewer samples than `batch_size`, or one that the processes cannot share equally.
    """
    if batch_size % world:
        raise InputError(
            f"batch_size {batch_size} cannot be shared equally by {world} processes: make it a multiple of {world}"
        )
    if corpus.per_epoch < batch_size:
        skipped = f" ({len(corpus.faults)} skipped, the first: {corpus.faults[0]})" if corpus.faults else ""
        raise InputError(
            f"{corpus.per_epoch} samples with image and caption in {corpus} are fewer than the batch size "
            f"{batch_size}: lower batch_size or give more shards{skipped}"
        )
    return Steps(corpus.per_epoch // batch_size, batch_size, rank, world)


_Job = tuple[int, Items]
"""An epoch and the samples of one process's part of a batch: workers outlive an epoch."""


class _Jobs:
    """The batch sampler: each pass over the loader yields the jobs of the epoch in `now`."""

    now: tuple[int, WholeEpoch | WindowedEpoch, int]  # epoch, order, first batch

    def __iter__(self) -> Iterator[_Job]:
        epoch, order, start = self.now
        return ((epoch, items) for items in order.batches(start))


class _Batches(Dataset[Any]):
    def __init__(self, corpus: Corpus, transform: CropTransform, tokenizer: Tokenizer, seed: int) -> None:
        self.corpus, self.transform, self.tokenizer, self.seed = corpus, transform, tokenizer, seed

    def __getitems__(self, job: _Job) -> Batch | DiffCLIPError:
        """Make a batch, or say why there is none: an exception would lose its type between processes."""
        epoch, items = job
        keys, images, captions, faults = [], [], [], []
        samples = (items % self.corpus.samples).tolist()
        seeds = seeds_of(self.seed, epoch, items).tolist()
        try:
            for i, seed in zip(samples, seeds, strict=True):
                sample = decode(self.corpus, i)
                if isinstance(sample, Fault):
                    faults.append(sample)
                    continue
                keys.append(sample.key)
                images.append(self.transform(sample.pixels, seed))
                captions.append(sample.captions[caption_of(seed, sample.captions)])
        except DiffCLIPError as error:
            return error
        if not keys:
            blank = self.transform(torch.zeros(3, 8, 8, dtype=torch.uint8), 0)
            return Batch(blank[None][:0], self.tokenizer([""])[:0], [], faults)
        # In a worker it collates straight into the memory that the processes share.
        return Batch(default_collate(images), self.tokenizer(captions), keys, faults)


def _as_it_is(batch: Any) -> Any:
    return batch


class Decoded(NamedTuple):
    """A sample's key, its captions and its image, uint8 [3, H, W]."""

    key: str
    captions: list[str]
    pixels: Tensor


def decode(corpus: Corpus, i: int) -> Decoded | Fault:
    """Read and decode usable sample `i` of a corpus, or return its fault; raises as `Corpus.read`."""
    sample = corpus.read(i)
    if isinstance(sample, Fault):
        return sample
    try:
        return Decoded(sample.key, sample.captions, read_pixels(sample.image, sample.name))
    except InputError as error:
        return sample_fault(sample.name, error)


def caption_of(seed: int, captions: list[str]) -> int:
    """Choose one of a sample's captions by its upper bits."""
    return (seed >> 32) % len(captions)
