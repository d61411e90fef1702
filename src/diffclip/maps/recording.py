"""Record the attention maps of chosen layers in a forward pass. The model is unchanged afterwards.

During the recording, the chosen layers attend through `attend_through_maps`, the plain twin of the fast paths. Outputs
are the same up to rounding, and whatever is computed from them can be differentiated with respect to each map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from diffclip.attention.module import AttentionMaps
from diffclip.errors import InputError
from diffclip.model import CLIP

Norm = Literal["detached", "graph"]
"""The rule for gradients through a head norm: its denominator is constant ("detached") or differentiated ("graph")."""
_MEMORY = 2 << 30  # bytes for the maps of a batch, their gradients and the activations kept for them


@contextmanager
def recording(
    model: CLIP, tower: str, first_layer: int = 0, gradients: bool = False, norm: Norm = "detached"
) -> Iterator[list[AttentionMaps]]:
    """Record the maps of `tower` ("visual", "text") from `first_layer` on, in order of depth, for each call of the
    tower in the block.

    The model is in evaluation mode inside the block; its own mode is restored afterwards. Without `gradients` no graph
    is made. With `gradients` the graph begins at `first_layer`, so that earlier layers cost no memory. This holds for
    the first call of the tower: then gradients stay on until the block ends. `torch.autograd.grad` gives the derivative
    with respect to `maps.combined` of each layer: the total derivative, through all later layers. The module
    `relevance` explains `norm`. Several threads must not record one model at once.
    """
    chosen = model.attention_layers()[tower][first_layer:]
    was_training = [module for module in model.modules() if module.training]
    was_checkpointing = model.visual.grad_checkpointing
    maps: list[AttentionMaps] = []
    model.eval()
    # timm uses gradient checkpointing in evaluation too, which would record the maps twice
    model.visual.grad_checkpointing = False
    for layer in chosen:
        layer._attend = partial(_attend, layer, gradients, norm == "detached", maps)  # type: ignore[method-assign]
    try:
        with torch.inference_mode(False), torch.no_grad():
            yield maps
    finally:
        for layer in chosen:
            del layer._attend
        model.visual.grad_checkpointing = was_checkpointing
        # module by module, because some modules may have been in evaluation mode before
        for module in was_training:
            module.training = True


@contextmanager
def collecting(
    modules: Iterable[nn.Module], choose: Callable[..., Any] = lambda module, given, out: out
) -> Iterator[list[Any]]:
    """Collect the output of each call of the modules, or what `choose` takes of module, inputs and output."""
    found: list[Any] = []
    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(lambda *call: found.append(choose(*call))))
        yield found


def images_at_once(model: CLIP, first_layer: int = 0) -> int:
    """Compute the number of images whose maps from `first_layer` on, with gradients, fit into about 2 GiB."""
    vision = model.config.vision
    tokens = (vision.image_size // vision.patch_size) ** 2 + 1 + vision.registers
    layers = vision.layers - first_layer % vision.layers
    # four maps per head, and the activations that a block of this width keeps for its gradients
    numbers = layers * tokens * (4 * vision.heads * tokens + 20 * vision.width)
    return max(1, _MEMORY // (4 * numbers))


def _attend(
    layer: Any, gradients: bool, detach_norm: bool, layer_maps: list[AttentionMaps], x: Tensor, causal: bool
) -> Tensor:
    if gradients:
        torch.set_grad_enabled(True)  # until the block of `recording` ends
        # the parameters of a frozen model would begin no graph
        x = x if x.requires_grad else x.detach().requires_grad_()
    out: Tensor
    maps: AttentionMaps
    out, maps = layer.attend_through_maps(x, causal, detach_norm and gradients)
    if not layer.is_built_in():
        _check(layer, x, causal, out, maps)
    layer_maps.append(maps)
    return out


@torch.no_grad()
def _check(layer: Any, x: Tensor, causal: bool, out: Tensor, maps: AttentionMaps) -> None:
    """Raise `InputError` if the layer of a plugin makes other maps than it says, or maps of another output."""
    name, full, tokens = f"{type(layer).__name__}.attend_through_maps", maps.combined, x.shape[1]
    if full.ndim != 4 or full.shape[2:] != (tokens, tokens):
        raise InputError(
            f"{name} gives a map {list(full.shape)} of {tokens} tokens: return maps [B, H, N, N]"
        )
    if layer.is_differential and maps.second is None:
        raise InputError(
            f"{name} gives one map, and is_differential is True: give the second map and lam too"
        )
    expected = type(layer)._attend(layer, x, causal)
    close = 0.02 * float(expected.abs().nan_to_num().max())  # the paths round in their own ways
    if not torch.allclose(out, expected, atol=close, equal_nan=True):
        raise InputError(f"{name} and _attend give different outputs for the same x: correct one of them")
