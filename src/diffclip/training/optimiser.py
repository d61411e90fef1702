"""AdamW with the paper's groups, and its schedule: linear warm-up, then cosine.

Source: SLIP's training code (github.com/facebookresearch/SLIP, main.py and utils.py), which the paper trains with.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from diffclip.training.recipe import Recipe

# ln 100, the bound that CLIP and SLIP put on the logit scale
MAX_LOGIT_SCALE = math.log(100)


def small_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The scalars (which cannot be shared out over processes) and the vectors of λ (which are not worth it)."""
    return [
        parameter
        for name, parameter in model.named_parameters()
        if not parameter.ndim or name.rpartition(".")[2].startswith("lambda_")
    ]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Three groups: decayed, and not decayed: norms and biases; λ and the logit scale.

    The last two are apart because a fused optimiser takes a group whose tensors are all shared out, or all whole.
    """
    small = small_parameters(model)
    others = [p for p in model.parameters() if not any(p is other for other in small)]
    kinds = ([p for p in others if p.ndim >= 2], [p for p in others if p.ndim < 2], small)
    decays = (weight_decay, 0.0, 0.0)
    return [{"params": kind, "weight_decay": decay} for kind, decay in zip(kinds, decays, strict=True)]


def make_optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW as the recipe has it; the learning rate is set before each step."""
    groups = parameter_groups(model, recipe.weight_decay)
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=True)


def learning_rate(step: int, steps: int, warmup_steps: int, recipe: Recipe) -> float:
    """The learning rate of step `step` (1 … steps): linear from `lr_start` to `lr`, then half a cosine to `lr_end`."""
    if step <= warmup_steps:
        return recipe.lr_start + (recipe.lr - recipe.lr_start) * (step - 1) / max(1, warmup_steps - 1)
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    return recipe.lr_end + (recipe.lr - recipe.lr_end) * 0.5 * (1 + math.cos(math.pi * done))
