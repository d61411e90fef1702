"""OpenCLIP's losses, set up for one process or several.

Each process computes its share of the loss, and the mean over processes is the loss of the whole batch. DDP and FSDP
average gradients over processes, so the gradient is that of the whole batch too. Without `gather_with_grad` the
features of the other processes are constants, as in SLIP's training: the loss is the same, the gradient is not
(docs/scaling.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

Criterion = Callable[..., Tensor]


def make_criterion(kind: str, gather_with_grad: bool, rank: int = 0, world: int = 1) -> Criterion:
    """Make the loss `kind` ("clip" or "siglip"): a function with the outputs of the model as keyword arguments.

    Features are those of this process, [B, D]; B is the same in all processes.
    Sources: Radford et al. 2021 and Zhai et al. 2023, in OpenCLIP's implementations.
    """
    from open_clip.loss import ClipLoss, SigLipLoss

    # open_clip gathers with functions that torch has renamed
    warnings.filterwarnings("ignore", category=FutureWarning, module="open_clip.loss")
    if kind == "siglip":
        # SigLipLoss has several ways to exchange texts; this one works alike on every backend
        sigmoid: Criterion = SigLipLoss(rank=rank, world_size=world, dist_impl="gather")
        return sigmoid
    # local loss: a process holds only the logits of its own rows, B × (B · world)
    softmax: Criterion = ClipLoss(
        local_loss=world > 1, gather_with_grad=gather_with_grad, rank=rank, world_size=world
    )
    return softmax


@torch.no_grad()
def accuracy_within(image_features: Tensor, text_features: Tensor, rank: int = 0, world: int = 1) -> Tensor:
    """Compute the share of this process's pairs [B, D] whose own partner scores highest in the whole batch. The result
    (0-dim) is the mean of both directions."""
    images, texts = image_features, text_features
    if world > 1:
        features = torch.stack([image_features, text_features])
        parts = [torch.empty_like(features) for _ in range(world)]
        torch.distributed.all_gather(parts, features.contiguous())
        images, texts = torch.cat(parts, dim=1)
    partners = torch.arange(len(image_features), device=images.device) + rank * len(image_features)
    to_text = (image_features @ texts.T).argmax(dim=1) == partners
    to_image = (text_features @ images.T).argmax(dim=1) == partners
    return (to_text.float().mean() + to_image.float().mean()) / 2
