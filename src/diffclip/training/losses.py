"""OpenCLIP's losses, set up for one process or several.

Each process computes its share of the loss, and the mean over processes is the loss of the whole batch. DDP and FSDP
average gradients over processes, so the gradient is that of the whole batch too. Without `gather_with_grad` the
features of the other processes are constants, as in SLIP's training: the loss is the same, the gradient is not
(docs/scaling.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Criterion = Any
"""A loss of OpenCLIP's: a module with `get_logits`, called with the outputs of the model as keyword arguments."""
ACCURACY = {"clip": "accuracy", "siglip": "image_accuracy"}
"""The key of `accuracy_of` in a record, by loss."""


def make_criterion(kind: str, gather_with_grad: bool, rank: int = 0, world: int = 1) -> Criterion:
    """Make the loss `kind` ("clip" or "siglip").

    Features are those of this process, [B, D]; B is the same in all processes.
    Sources: Radford et al. 2021 and Zhai et al. 2023, in OpenCLIP's implementations.
    """
    from open_clip.loss import ClipLoss, SigLipLoss

    # open_clip gathers with functions that torch has renamed
    warnings.filterwarnings("ignore", category=FutureWarning, module="open_clip.loss")
    if kind == "siglip":
        # SigLipLoss has several ways to exchange texts; this one works alike on every backend
        return SigLipLoss(rank=rank, world_size=world, dist_impl="gather")
    # local loss: a process holds only the logits of its own rows, B × (B · world)
    return ClipLoss(local_loss=world > 1, gather_with_grad=gather_with_grad, rank=rank, world_size=world)


@contextmanager
def collect_logits(criterion: Criterion, wanted: bool = True) -> Iterator[list[Tensor]]:
    """Collect the logits that `criterion` computes within the context, without their graph, if they are `wanted`."""
    if not wanted:
        yield []
        return
    compute, collected = criterion.get_logits, list[Tensor]()

    def compute_and_collect(*arguments: Any, **options: Any) -> Any:
        logits = compute(*arguments, **options)
        collected.extend(part.detach() for part in (logits if isinstance(logits, tuple) else [logits]))
        return logits

    criterion.get_logits = compute_and_collect
    try:
        yield collected
    finally:
        criterion.get_logits = compute


def accuracy_of(kind: str, logits: list[Tensor], rank: int) -> Tensor:
    """Compute the share of this process's samples whose own partner has the highest logit in the whole batch (0-dim).

    `logits` are those that the loss `kind` computes: for "clip" the rows of images and of texts, so that the result is
    the mean of both directions; for "siglip" blocks of texts (first this process's own, with several processes then
    those of every process), so that the result counts rows of images alone.
    """
    if kind == "siglip":
        logits = [torch.cat(logits[1:] or logits, dim=1)]
    partners = torch.arange(len(logits[0]), device=logits[0].device) + rank * len(logits[0])
    return torch.stack([(rows.argmax(dim=1) == partners).float().mean() for rows in logits]).mean()
