"""Features of a frozen vision tower, for a linear probe and few-shot classification.

A feature is the class token after the final norm, before the projection into the joint space (768 wide in a ViT-B),
in float32 and of any length. Shapes: N images, D vision width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.transforms import Transform
from diffclip.errors import InputError
from diffclip.evaluation.embed import Progress, checked, evaluating

if TYPE_CHECKING:
    from diffclip.model import CLIP


@dataclass(frozen=True)
class Features:
    """Features [N, D] float32 of labeled images, their classes int64 [N], and the name of their split for messages."""

    where: str
    values: Tensor
    labels: Tensor

    def take(self, indices: Tensor, where: str) -> Features:
        """Select some of the images and call them `where`."""
        return Features(where, self.values[indices], self.labels[indices])

    def check(self, classnames: Sequence[str], least: int, what: str) -> None:
        """Raise `InputError` for a label outside the class list or a class with fewer than `least` images."""
        low, high = int(self.labels.min()), int(self.labels.max())
        if not 0 <= low <= high < len(classnames):
            raise InputError(
                f"{self.where}: labels run from {low} to {high}, but there are {len(classnames)} classes: correct them"
            )
        counts = torch.bincount(self.labels, minlength=len(classnames)).tolist()
        short = [index for index, count in enumerate(counts) if count < least]
        if short:
            more = f" ({len(short)} classes have too few)" if len(short) > 1 else ""
            raise InputError(
                f"{self.where}: class {classnames[short[0]]!r} has {counts[short[0]]} images{more}, and {least} are "
                f"needed {what}: add some, or leave the class out of the set"
            )


def read_features(
    model: CLIP,
    preprocess: Transform,
    data: EvaluationSet,
    batch_size: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> Features:
    """Compute the features of a classification set; broken images are left out, see `data.faults`.

    Raises:
        InputError: every image is broken, or a feature is not finite.
    """
    weight = next(iter(model.parameters()))
    values: list[Tensor] = []
    labels: list[int] = []
    with evaluating(model):
        for batch in data.batches(preprocess, batch_size, workers):
            images = batch.images.to(weight.device, weight.dtype, non_blocking=True)
            values.append(model.visual(images).float().cpu())
            labels += [data.labels[position] for position in batch.positions]
            if progress:
                progress(f"{data.split} images", len(batch.positions), len(data))
    if not values:
        raise InputError(f"{data.name}/{data.split} has no image that can be read")
    # a clone, because tensors of inference mode cannot be trained on
    return Features(
        f"{data.name}/{data.split}", checked(torch.cat(values), "images").clone(), torch.tensor(labels)
    )


def digest_of(module: nn.Module) -> str:
    """Hash the names, types, shapes and bytes of a module's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


@contextmanager
def one_thread(alone: bool = True) -> Iterator[None]:
    """Compute on one CPU thread inside, if `alone`; hundreds of short steps cost more to share out than to do."""
    threads = torch.get_num_threads()
    try:
        if alone:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)
