"""A program that several processes run: the loss and all gradients of one step of each case, whole, into a file.

torchrun --nproc-per-node 2 gradients.py OUTPUT STRATEGY LOSS WITH_GRAD MICRO
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from diffclip.config import variant_config
from diffclip.model import CLIP
from diffclip.training.accumulate import backward_in_parts, backward_whole
from diffclip.training.distributed import average_small, clip_gradients, make_fabric, means
from diffclip.training.launch import Hardware
from diffclip.training.losses import accuracy_within, make_criterion

BATCH = 12
# the loss, whether gradients are gathered, and the samples of a forward pass (0: all)
CASES = ("clip yes 0", "clip yes 4", "siglip yes 0", "siglip yes 4", "clip no 0", "clip no 4")


def made_model(loss: str = "clip", drop_path: float = 0.0) -> CLIP:
    config = variant_config(
        "DiffCLIP",
        {
            "embed_dim": 16,
            "vision": {
                "image_size": 32,
                "patch_size": 16,
                "width": 32,
                "layers": 2,
                "heads": 4,
                "drop_path": drop_path,
            },
            "text": {"context_length": 12, "vocab_size": 50, "width": 32, "layers": 2, "heads": 4},
            "logit_bias": loss == "siglip",
        },
    )
    return CLIP(config, seed=3)


def made_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(1, 48, (BATCH, 12), generator=generator)
    tokens[:, -1] = 49
    return torch.randn(BATCH, 3, 32, 32, generator=generator), tokens


def gradients_of(model: CLIP) -> dict[str, torch.Tensor]:
    """Whole gradients by name, also of parameters that are shared out."""
    return {
        name: (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad).clone()
        for name, p in model.named_parameters()
    }


def main() -> None:
    output, strategy = sys.argv[1:]
    hardware = Hardware(strategy=strategy, accelerator="cpu").resolved()
    fabric = make_fabric(hardware, "fp32")
    fabric.launch()
    told = {case: one_step(fabric, *case.split()) for case in CASES}
    if fabric.global_rank == 0:
        torch.save(told, Path(output))


def one_step(fabric: Any, loss: str, with_grad: str, micro: str) -> dict[str, Any]:
    model = made_model(loss)
    rank, world = fabric.global_rank, fabric.world_size
    wrapped = fabric.setup_module(model)
    images, tokens = (part.chunk(world)[rank] for part in made_batch())
    criterion = make_criterion(loss, with_grad == "yes", rank, world)
    if micro == "0":
        value, out = backward_whole(wrapped, criterion, images, tokens, fabric.backward)
    else:
        without_sync = partial(fabric.no_backward_sync, wrapped)
        value, out = backward_in_parts(
            wrapped, criterion, images, tokens, fabric.backward, int(micro), without_sync
        )
    average_small(fabric, model)
    accuracy = accuracy_within(out["image_features"], out["text_features"], rank, world)
    told = means(fabric, value, accuracy)
    gradients = gradients_of(model)
    norm = clip_gradients(fabric, model, 0.01)
    return {
        "loss": told[0],
        "accuracy": told[1],
        "norm": norm,
        "gradients": gradients,
        "clipped": gradients_of(model),
    }


if __name__ == "__main__":
    main()
