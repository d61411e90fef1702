"""AdamW with the paper's groups, its schedule (linear warm-up, then cosine), and its state as whole tensors.

Source: SLIP's training code (github.com/facebookresearch/SLIP, main.py and utils.py), which the paper trains with.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sized
from typing import Any

import torch
from torch import Tensor, nn

from diffclip.errors import InputError
from diffclip.training.recipe import Recipe

# ln 100, the bound that CLIP and SLIP put on the logit scale
MAX_LOGIT_SCALE = math.log(100)
# the parts that a recipe can freeze as a whole
_TOWERS = {
    "visual": ("visual", "image_projection"),
    "text": ("token_embedding", "positional_embedding", "transformer", "ln_final", "text_projection"),
}
# the parameters that `no_decay` can exempt
_EXEMPT = {
    "registers": ("visual.reg_token",),
    "class_token": ("visual.cls_token",),
    "positions": ("visual.pos_embed", "positional_embedding"),
}


def small_parameters(model: nn.Module) -> list[nn.Parameter]:
    """List the scalars (which cannot be sharded) and the vectors of λ (which are not worth sharding)."""
    named = model.named_parameters()
    return [own for name, own in named if not own.ndim or name.rpartition(".")[2].startswith("lambda_")]


def freeze(model: nn.Module, names: Iterable[str]) -> None:
    """Exclude the parts `names` of a model from training: "visual" or "text" (a tower with its projection), a module or
    parameter by name, or some modules of a list, such as "visual.blocks[:9]". `InputError` is raised for an unknown
    part, and if nothing is left to train."""
    for name in names:
        parts = [part for given in _TOWERS.get(name, (name,)) for part in _expand(model, given)]
        prefixes = tuple(f"{part}." for part in parts)
        frozen = [value for own, value in model.named_parameters() if f"{own}.".startswith(prefixes)]
        if not frozen:
            raise InputError(
                f"freeze: {name!r} is no part of the model: name a tower (visual, text), a module or parameter, or "
                "some of a list, such as visual.blocks[:9]"
            )
        for parameter in frozen:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("freeze names every parameter of the model: leave some to train")


def _expand(model: nn.Module, name: str) -> list[str]:
    """Return the names of the modules that an index or a slice at the end of `name` picks; without one, `name`."""
    match = re.fullmatch(r"(.+)\[(-?\d*)(:?)(-?\d*)\]", name)
    if match is None:
        return [name]
    path, start, colon, end = match.groups()
    modules = dict(model.named_modules()).get(path)
    numbers = range(len(modules) if isinstance(modules, Sized) else 0)
    picked = slice(int(start) if start else None, int(end) if end else None)
    if not colon:
        picked = slice(int(start), int(start) + 1 or None) if start else slice(0)
    return [f"{path}.{number}" for number in numbers[picked]]


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Make the AdamW of the recipe; the training loop sets the learning rate before each step.

    It has three groups: parameters with weight decay; norms, biases and the recipe's `no_decay`; λ and the logit scale.
    The last two have no decay. A fused optimizer needs them apart: a group must be all sharded or all whole tensors.
    """
    exempt = {name for part in recipe.no_decay for name in _EXEMPT[part]}
    small = {id(parameter) for parameter in small_parameters(model)}
    kinds: tuple[list[nn.Parameter], ...] = ([], [], [])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_decayed = parameter.ndim >= 2 and name not in exempt
            kinds[2 if id(parameter) in small else 0 if is_decayed else 1].append(parameter)
    decays = (recipe.weight_decay, 0.0, 0.0)
    groups = [{"params": kind, "weight_decay": decay} for kind, decay in zip(kinds, decays, strict=True)]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=True)


def learning_rate(step: int, steps: int, warmup_steps: int, recipe: Recipe) -> float:
    """The learning rate of step `step` (1 … steps): linear from `lr_start` to `lr`, then half a cosine to `lr_end`."""
    if step <= warmup_steps:
        return recipe.lr_start + (recipe.lr - recipe.lr_start) * (step - 1) / max(1, warmup_steps - 1)
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return recipe.lr_end + (recipe.lr - recipe.lr_end) * 0.5 * (1 + math.cos(math.pi * progress))


def optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, is_writer: bool
) -> dict[str, Tensor]:
    """Return the optimizer's state as whole tensors by "PARAMETER:KEY" for the process that writes it. All processes
    call this, since sharded tensors are gathered."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            whole = value.full_tensor() if is_share(value) else value
            if is_writer:
                tensors[f"{name}:{key}"] = whole.detach().cpu().contiguous()
    return tensors


def load_optimizer(tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load the state that `optimizer_tensors` returned, sharded as the parameters are now."""
    from torch.distributed.tensor import distribute_tensor

    parameters: dict[str, Any] = dict(model.named_parameters())
    for entry, tensor in tensors.items():
        name, _, key = entry.rpartition(":")
        parameter = parameters[name]
        value = tensor.to(parameter.device, copy=True)  # not a view of the file, which will be removed
        if is_share(parameter) and value.ndim:  # a count of steps stays whole
            value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        optimizer.state[parameter][key] = value


def is_share(value: object) -> bool:
    """Tell whether a tensor is sharded over processes (FSDP2), so that it holds this process's share."""
    return hasattr(value, "full_tensor")
