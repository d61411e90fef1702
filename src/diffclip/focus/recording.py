"""The maps that a forward pass goes through, of any layers; the model itself is left as it was.

While it records, the chosen layers attend through `attend_through_maps`, the plain twin of the fast paths: outputs are
the same up to rounding, and gradients of anything computed from them can be taken for each map.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from diffclip.attention import AttentionMaps
from diffclip.errors import InputError, unknown
from diffclip.model import CLIP

TOWERS = ("visual", "text")
Norm = Literal["detached", "graph"]
"""The rule for gradients through a head norm: its denominator as a constant ("detached"), or as computed ("graph")."""
_MEMORY = 2 << 30  # bytes that the maps of images, their gradients and what leads to them may take at once


@contextmanager
def recording(
    model: CLIP, tower: str, first_layer: int = 0, gradients: bool = False, norm: Norm = "detached"
) -> Iterator[list[AttentionMaps]]:
    """Record the maps of `tower` from `first_layer` on, in order of depth, for each call of the tower in the block.

    The model is in evaluation mode inside the block and in its own mode after it. Without `gradients` no graph is
    made; with them it begins at `first_layer`, what comes before costs no memory (in the block's first call of the
    tower: gradients stay on until the block ends), and `torch.autograd.grad` finds the derivative of what was computed
    for `maps.combined` of each layer (the total one, through all later layers; `norm` as `relevance` explains it). Not
    for use by several threads on one model at once.

    Raises:
        InputError: no such tower or layer.
    """
    if tower not in TOWERS:
        raise unknown("tower", tower, TOWERS)
    layers = model.attention_layers()[tower]
    if not -len(layers) <= first_layer < len(layers):
        raise InputError(f"the {tower} tower has {len(layers)} layers: there is no layer {first_layer}")
    chosen = layers[first_layer % len(layers) :]
    was_training = [module for module in model.modules() if module.training]
    was_checkpointing = model.visual.grad_checkpointing
    seen: list[AttentionMaps] = []
    model.eval()
    # timm checkpoints in evaluation too, which would make the maps twice
    model.visual.grad_checkpointing = False
    for layer in chosen:
        layer._attend = partial(_attend, layer, gradients, norm == "detached", seen)  # type: ignore[method-assign]
    try:
        with torch.inference_mode(False), torch.no_grad():
            yield seen
    finally:
        for layer in chosen:
            del layer._attend
        model.visual.grad_checkpointing = was_checkpointing
        # one by one: a part may have been frozen in evaluation mode
        for module in was_training:
            module.training = True


def images_at_once(model: CLIP, first_layer: int = 0) -> int:
    """Number of images whose maps with gradients, from `first_layer` on, fit into about 2 GiB together."""
    vision = model.config.vision
    tokens = (vision.image_size // vision.patch_size) ** 2 + 1 + vision.registers
    # four maps per head, and what a block of this width keeps for its gradients
    numbers = (
        (vision.layers - first_layer % vision.layers)
        * tokens
        * (4 * vision.heads * tokens + 20 * vision.width)
    )
    return max(1, _MEMORY // (4 * numbers))


def _attend(
    layer: Any, gradients: bool, detach_norm: bool, seen: list[AttentionMaps], x: Tensor, causal: bool
) -> Tensor:
    if gradients:
        torch.set_grad_enabled(True)  # until the block of `recording` ends
        # of a frozen model no parameter would begin a graph
        x = x if x.requires_grad else x.detach().requires_grad_()
    out: Tensor
    maps: AttentionMaps
    out, maps = layer.attend_through_maps(x, causal, detach_norm and gradients)
    seen.append(maps)
    return out
