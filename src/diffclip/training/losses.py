"""The losses, OpenCLIP's, set up for one process or for many.

Each process computes its share of the loss: the mean over processes is the loss of the whole batch, and with gradients
averaged over processes (as DDP and FSDP do) the gradient is the whole batch's too. Without `gather_with_grad` the
features of the other processes count as constants, as SLIP trained: the same loss, another gradient
(docs/scaling.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

Criterion = Callable[..., Tensor]


def make_criterion(kind: str, gather_with_grad: bool, rank: int = 0, world: int = 1) -> Criterion:
    """The loss `kind` ("clip" or "siglip") as a function of what the model returns, by name.

    Features are this process's [B, D], B the same in all processes.
    Sources: Radford et al. 2021 and Zhai et al. 2023, in OpenCLIP's implementations.
    """
    from open_clip.loss import ClipLoss, SigLipLoss

    # it gathers through functions that torch has renamed
    warnings.filterwarnings("ignore", category=FutureWarning, module="open_clip.loss")
    if kind == "siglip":
        # of its ways to exchange texts the one that works alike on every backend
        sigmoid: Criterion = SigLipLoss(rank=rank, world_size=world, dist_impl="gather")
        return sigmoid
    # local loss: a process holds the logits of its own rows only, B × (B · world) of them
    softmax: Criterion = ClipLoss(
        local_loss=world > 1, gather_with_grad=gather_with_grad, rank=rank, world_size=world
    )
    return softmax


@torch.no_grad()
def accuracy_within(image_features: Tensor, text_features: Tensor, rank: int = 0, world: int = 1) -> Tensor:
    """Share of a process's pairs [B, D] whose own partner scores highest in the whole batch, mean of both directions
    (0-dim)."""
    images, texts = image_features, text_features
    if world > 1:
        mine = torch.stack([image_features, text_features])
        parts = [torch.empty_like(mine) for _ in range(world)]
        torch.distributed.all_gather(parts, mine.contiguous())
        images, texts = torch.cat(parts, dim=1)
    own = torch.arange(len(image_features), device=images.device) + rank * len(image_features)
    to_text = (image_features @ texts.T).argmax(dim=1) == own
    to_image = (text_features @ images.T).argmax(dim=1) == own
    return (to_text.float().mean() + to_image.float().mean()) / 2
