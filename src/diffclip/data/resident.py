"""Training batches from pictures that stay decoded in memory, the same that `CaptionLoader` gives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from diffclip.data.corpus import Corpus
from diffclip.data.crops import resized_crops
from diffclip.data.decoded import DecodedCorpus, check_fits
from diffclip.data.draws import draw_crops
from diffclip.data.loader import Batch, steps_of
from diffclip.data.order import WholeEpoch, seeds_of
from diffclip.data.transforms import Crop, TrainTransform


class ResidentLoader:
    """`CaptionLoader` for decoded pictures: the same order, captions, crops and mirrors from the same seed.

    On a CPU each crop is made by `transform`, and batches are equal bit by bit. With `stack` a batch's crops are made
    at once where that lies (see `resized_crops`), nothing is sent there during an epoch and nothing waits for it;
    batches then lie there too. This process's generators keep their state.

    Args:
        corpus: where the samples are.
        decoded: its samples.
        tokens: the ids of all captions, int64 [captions, L].
        transform: what crops; its sizes and shares are used, or it is called.
        batch_size, seed, rank, world: as in `CaptionLoader`.
        stack: uint8 [N, 3, H, W], the pictures on a device (`stacked`); None crops one by one on the CPU.

    Attributes:
        corpus, samples, batches_per_epoch, dropped, faults: as in `CaptionLoader`.
        resident: where the pictures are, for people: "cpu", "cuda" or "cpu, batched".

    Raises:
        InputError: as `CaptionLoader`.
    """

    def __init__(
        self,
        corpus: Corpus,
        decoded: DecodedCorpus,
        tokens: Tensor,
        transform: TrainTransform,
        batch_size: int,
        seed: int,
        stack: Tensor | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._steps = steps_of(corpus, batch_size, rank, world)
        self.faults, self.samples = corpus.faults, corpus.per_epoch
        self.batches_per_epoch, self.dropped = self._steps.batches, self.samples % batch_size
        self.corpus, self._seed = corpus, seed
        self._decoded, self._transform, self._stack = decoded, transform, stack
        self._device = torch.device("cpu") if stack is None else stack.device
        self._tokens = tokens.to(self._device)
        self._captions = np.array([len(own) for own in decoded.captions], dtype=np.int64)
        self._first_captions = np.cumsum(self._captions) - self._captions
        on_cpu = self._device.type == "cpu"
        self.resident = f"{self._device.type}, batched" if on_cpu and stack is not None else self._device.type

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """This process's part of the batches of an epoch from `start_batch` on."""
        order = WholeEpoch(self.corpus.layout, self._steps, self._seed, epoch)
        items = np.concatenate([np.zeros(0, np.int64), *order.batches(start_batch)])
        samples = items % self.corpus.samples
        whole = self._captions[samples] > 0
        ends = np.cumsum(whole.reshape(-1, self._steps.part).sum(1)).tolist()
        shown, seeds = samples[whole], seeds_of(self._seed, epoch, items[whole])
        drawn = draw_crops(self._transform, seeds, self._decoded.sizes[shown])
        captions = (seeds >> np.uint64(32)) % self._captions[shown].astype(np.uint64)
        rows = self._first_captions[shown] + captions.astype(np.int64)
        # sent once, before the first step
        chosen, crops, texts = (torch.from_numpy(part).to(self._device) for part in (shown, drawn, rows))
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            mine = slice(start, end)
            faults = self._decoded.faults
            read = samples[number * self._steps.part :][: self._steps.part].tolist()
            yield Batch(
                self._images(chosen[mine], crops[mine]),
                self._tokens[texts[mine]],
                [self._decoded.keys[i] for i in shown[mine].tolist()],
                [faults[i] for i in read if i in faults],
            )

    def close(self) -> None:
        """Nothing is being read."""

    def _images(self, chosen: Tensor, crops: Tensor) -> Tensor:
        size = self._transform.image_size
        if not len(chosen):
            return torch.empty(0, 3, size, size, dtype=torch.uint8, device=self._device)
        if self._stack is not None:
            return resized_crops(self._stack, chosen, crops, size, self._transform.interpolation)
        cut, picture = self._transform.cut, self._decoded.picture
        boxes = (
            Crop(top, left, height, width, bool(mirrored))
            for top, left, height, width, mirrored in crops.tolist()
        )
        return torch.stack([cut(picture(i), box) for i, box in zip(chosen.tolist(), boxes, strict=True)])


def stacked(decoded: DecodedCorpus, device: torch.device) -> Tensor:
    """All pictures on `device` as uint8 [N, 3, H, W], H and W those of the highest and the widest, smaller ones in the
    top left corner: 3·N·H·W bytes.

    Raises:
        InputError: that is more than the device has left.
    """
    height, width = (int(edge) for edge in decoded.sizes.max(0))
    shape = (len(decoded.sizes), 3, height, width)
    check_fits(
        float(np.prod(shape, dtype=np.float64)), f"{shape[0]} samples, each {height} × {width}", device
    )
    stack = torch.zeros(shape, dtype=torch.uint8, device=device)
    for i, (high, wide) in enumerate(decoded.sizes.tolist()):
        stack[i, :, :high, :wide] = decoded.picture(i).to(device)
    return stack
