"""Attention maps of the vision tower, computed beside the model: its own forward pass stays as fast as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from diffclip.attention import AttentionMaps
from diffclip.errors import InputError
from diffclip.model import CLIP


@contextmanager
def _inputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """The first argument of each call of `module` inside the block; no hook is left behind."""
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        yield seen
    finally:
        handle.remove()


def vision_maps(model: CLIP, images: Tensor, layer: int = -1) -> AttentionMaps:
    """The maps of one vision layer for `images` [B, 3, S, S]: each [B, heads, N, N], N patches and the class token.

    They are those of evaluation, all patches kept, whatever mode the model is in; the mode is restored.

    Raises:
        InputError: the tower has no such layer.
    """
    layers = model.attention_layers()["visual"]
    if not -len(layers) <= layer < len(layers):
        raise InputError(f"the vision tower has {len(layers)} layers: there is no layer {layer}")
    attention = layers[layer]
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), _inputs_of(attention) as seen:
            model.encode_image(images)
            return attention.maps(seen[0])
    finally:
        model.train(was_training)


def class_token_maps(model: CLIP, images: Tensor, layer: int = -1) -> dict[str, Tensor]:
    """What the class token attends to, mean over heads: name of the map → [B, h, w] patches.

    A plain layer has "A"; a differential one has "A1", "A2" and the signed "A1 − λ·A2".

    Raises:
        InputError: the tower has no such layer.
    """
    maps = vision_maps(model, images, layer)
    named = (
        {"A": maps.first}
        if maps.second is None
        else {"A1": maps.first, "A2": maps.second, "A1 − λ·A2": maps.combined}
    )
    return {name: _patches(full.mean(1)[:, 0, 1:]) for name, full in named.items()}


def _patches(row: Tensor) -> Tensor:
    side = math.isqrt(row.shape[-1])
    return row.reshape(*row.shape[:-1], side, side)
