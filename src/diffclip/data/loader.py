"""Batches of pictures and captions for training, in an order that depends on the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffclip.data.pictures import watched
from diffclip.data.samples import (
    CAPTION_KEY,
    PICTURE,
    Fault,
    Transform,
    caption_members,
    captions_of,
    picture_of,
    sample_fault,
)
from diffclip.data.shards import Shards
from diffclip.errors import DiffCLIPError, InputError

Tokenizer = Callable[[list[str]], Tensor]
_Item = tuple[int, int]
_Read = tuple[str, Tensor, str]


@dataclass
class Batch:
    """images uint8 [B, 3, S, S], tokens int64 [B, L], the samples' keys [B], and what was skipped.

    B is the batch size less the broken samples, which may leave 0.
    """

    images: Tensor
    tokens: Tensor
    keys: list[str]
    faults: list[Fault]

    def __len__(self) -> int:
        return len(self.keys)


class CaptionLoader:
    """Pictures with one caption each, every sample once an epoch, in an order drawn from (`seed`, epoch).

    Crops, and the choice among several captions, are drawn from (`seed`, epoch, sample): they depend neither
    on the workers nor on the batch that an epoch is entered at. This process's generators keep their state.

    Args:
        shards: where the samples are.
        transform: PIL RGB → uint8 [3, S, S]; its randomness is torch's global generator.
        tokenizer: n texts → int64 [n, L].
        batch_size: samples a batch; the last incomplete batch of an epoch is dropped.
        seed: not negative.
        workers: processes that read ahead; 0 reads in this one.
        caption_key: the key of `.json` that holds a caption or a list of them. Unless it is another than the
            usual, a sample's `.txt`, one caption a line, comes first.

    Attributes:
        samples: how many samples have a picture and a caption.
        batches_per_epoch: how many batches an epoch has.
        dropped: how many samples an epoch leaves out because they do not fill a batch.
        faults: what is skipped in every epoch: broken shards, samples without a picture or a caption.

    Raises:
        InputError: fewer samples than `batch_size`.
    """

    def __init__(
        self,
        shards: Shards,
        transform: Transform,
        tokenizer: Tokenizer,
        batch_size: int,
        seed: int,
        workers: int = 0,
        caption_key: str = CAPTION_KEY,
    ) -> None:
        needed = {"picture": PICTURE, "caption": caption_members(caption_key)}
        self._usable, missing = shards.usable(needed)
        self.faults = shards.faults + missing
        self.samples = len(self._usable)
        if self.samples < batch_size:
            skipped = f" ({len(self.faults)} skipped, the first: {self.faults[0]})" if self.faults else ""
            raise InputError(
                f"{self.samples} samples with picture and caption in {shards} are fewer than the batch size "
                f"{batch_size}: lower batch_size or give more shards{skipped}"
            )
        self.batches_per_epoch, self.dropped = divmod(self.samples, batch_size)
        self._batch_size, self._seed, self._workers, self._shards = batch_size, seed, workers, shards
        self._order = _Order()
        self._loader: DataLoader[_Read | Fault] = DataLoader(
            _Captioned(shards, transform, seed, caption_key),
            batch_sampler=self._order,
            collate_fn=_Collate(transform, tokenizer),
            num_workers=workers,
            persistent_workers=workers > 0,
            # Without its own generator a DataLoader draws from the global one.
            generator=torch.Generator(),
        )

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from `start_batch` on, without reading those before it.

        With workers, which all epochs share, starting an epoch ends the one before.

        Raises:
            InputError: all samples that were to be read are broken.
            DiffCLIPError: a worker died, or another epoch was started meanwhile.
        """
        mine = self._order.batches = [(epoch, batch) for batch in self._batches(epoch)[start_batch:]]
        read, broken = 0, None
        for batch in watched(self._loader):
            read += len(batch)
            broken = broken or next(iter(batch.faults), None)
            yield batch
            if self._workers and self._order.batches is not mine:
                raise DiffCLIPError("another epoch of this loader was started: use a second loader for it")
        if broken and not read:
            raise InputError(f"every sample in {self._shards} is broken, the first one: {broken}")

    def _batches(self, epoch: int) -> NDArray[np.int64]:
        """[batches, batch size] sample numbers."""
        order = np.random.default_rng((self._seed, epoch)).permutation(self._usable)
        return order[: self.samples - self.dropped].reshape(self.batches_per_epoch, self._batch_size)


class _Order:
    """The batch sampler: the next pass over the loader gives what `batches` then holds.

    Each item carries its epoch, so that workers which outlive an epoch need not be told of the next.
    """

    def __init__(self) -> None:
        self.batches: list[tuple[int, NDArray[np.int64]]] = []

    def __iter__(self) -> Iterator[list[_Item]]:
        return ([(epoch, i) for i in batch.tolist()] for epoch, batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Captioned(Dataset[_Read | Fault]):
    def __init__(self, shards: Shards, transform: Transform, seed: int, caption_key: str) -> None:
        self.shards, self.transform, self.seed, self.caption_key = shards, transform, seed, caption_key
        self.extensions = PICTURE + caption_members(caption_key)

    def __getitem__(self, item: _Item) -> _Read | Fault:
        epoch, i = item
        name = self.shards.name(i)
        try:
            sample = self.shards.sample(i, self.extensions)
            captions = captions_of(sample, name, self.caption_key)
            picture = picture_of(sample, name)
        except (InputError, OSError) as error:
            return sample_fault(name, error)
        with _randomness_of(self.seed, epoch, i):
            caption = captions[int(torch.randint(len(captions), ()))]
            return self.shards.key(i), self.transform(picture), caption


class _Collate:
    def __init__(self, transform: Transform, tokenizer: Tokenizer) -> None:
        self.transform, self.tokenizer = transform, tokenizer

    def __call__(self, items: list[_Read | Fault]) -> Batch:
        faults = [item for item in items if isinstance(item, Fault)]
        whole = [item for item in items if not isinstance(item, Fault)]
        if not whole:
            with _randomness_of(0):
                blank = self.transform(Image.new("RGB", (8, 8)))
            return Batch(blank[None][:0], self.tokenizer([""])[:0], [], faults)
        keys, images, captions = zip(*whole, strict=True)
        return Batch(torch.stack(images), self.tokenizer(list(captions)), list(keys), faults)


@contextmanager
def _randomness_of(*numbers: int) -> Iterator[None]:
    """Torch's global CPU generator seeded by `numbers` for a while, and as before afterwards."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed the other devices too, at 20 times the cost.
        torch.default_generator.manual_seed(seed)
        yield
