"""Attention maps of either tower, made by `recording`, so that the model's own forward pass stays fast."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from diffclip.attention.module import AttentionMaps
from diffclip.data.masks import crop_box
from diffclip.errors import InputError
from diffclip.maps.recording import recording
from diffclip.model import CLIP
from diffclip.preprocess import EvalTransform

# number of inputs for which all maps of a tower are held at once: 90 MB for ViT-B-16
_AT_ONCE = 4


def patch_grid(model: CLIP) -> int:
    """Count the patches along an edge of the images of `model`; raise `InputError` for a single patch."""
    grid = model.config.vision.image_size // model.config.vision.patch_size
    if grid < 2:
        raise InputError("the model has a single patch, so a map shows nothing: use smaller patches")
    return grid


def patch_part(row: Tensor) -> Tensor:
    """Select the values of patches [..., h·w] from those of all tokens [..., N]: class token, registers, patches.

    N determines h·w: images are square, and `VisionConfig` refuses more registers than patches on two edges.
    """
    side = math.isqrt(row.shape[-1] - 1)
    return row[..., -side * side :]


def as_patches(row: Tensor) -> Tensor:
    """Reshape the values of patches [..., h·w], row by row, to [..., h, w]; images are square."""
    side = math.isqrt(row.shape[-1])
    return row.reshape(*row.shape[:-1], side, side)


def visible_part(image: Image.Image, preprocess: EvalTransform, edge: int) -> Image.Image:
    """Crop the part of an image that `preprocess` keeps, and scale it to a square of `edge` pixels."""
    shares = crop_box(image.size, preprocess.image_size, preprocess.resize)
    box = [share * length for share, length in zip(shares, image.size * 2, strict=True)]
    return image.resize((edge, edge), Image.Resampling.BICUBIC, box=(box[0], box[1], box[2], box[3]))


def rollout(maps: Sequence[AttentionMaps]) -> Tensor:
    """Compute attention rollout through `maps`, which are in order of depth: [B, N, N] ≥ 0, each row sums to 1.

    Rollout is the share of each input token in each output token if layers only mixed tokens: the product over layers
    of (A + 1)/2 with A the mean over heads (Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020).
    A map of a differential layer is signed, and its rows sum to 1 − λ. Its flow is measured by magnitude: A is the
    mean over heads of |A1 − λ·A2|, with rows divided by their sums.
    """
    tokens = maps[0].first.shape[-1]
    identity = torch.eye(tokens, dtype=maps[0].first.dtype, device=maps[0].first.device)
    flow = identity.expand(len(maps[0].first), -1, -1)
    for layer in maps:
        mixed = layer.combined.detach().abs().mean(1)
        total = mixed.sum(-1, keepdim=True)
        # a row of zeros (λ is 1 and both maps agree) mixes nothing in
        mixed = torch.where(total > 0, mixed / total, identity)
        flow = 0.5 * (mixed + identity) @ flow
    return flow


def map_correlation(maps: AttentionMaps) -> Tensor:
    """Compute Pearson's correlation of A1 and A2 in the class token's row, over the patches: [B, H].

    Near 1, both maps look at the same patches, and the difference cancels what they share. A constant map gives 0.
    """
    assert maps.second is not None, "a plain layer has one map"
    return _pearson(patch_part(maps.first[:, :, 0]), patch_part(maps.second[:, :, 0]))


def correlation_by_layer(model: CLIP, tower: str, inputs: Tensor) -> Tensor:
    """Compute Pearson's correlation of A1 and A2 in each layer of `tower`, mean over heads: float64 [n, layers] on the
    CPU; [n, 0] for a plain tower.

    For images [n, 3, S, S] ("visual") the class token's rows are correlated over the patches. For tokens [n, L]
    ("text") the rows of each text's end token are correlated over the tokens from the start of the text to its end.
    """
    tower_config = model.config.vision if tower == "visual" else model.config.text
    if not tower_config.is_differential:
        return torch.empty(len(inputs), 0, dtype=torch.float64)
    device = next(iter(model.parameters())).device
    correlations = []
    # otherwise the blocks of a compiled model are compiled again for the recording
    with torch.compiler.set_stance("force_eager"):
        for batch in torch.split(inputs.to(device), _AT_ONCE):
            with recording(model, tower) as maps:
                model.encode_image(batch) if tower == "visual" else model.encode_text(batch)
            by_layer = [
                map_correlation(layer) if tower == "visual" else _end_correlation(layer, batch)
                for layer in maps
            ]
            correlations.append(torch.stack([heads.mean(-1) for heads in by_layer], dim=-1))
    return torch.cat(correlations).cpu()


def _end_correlation(maps: AttentionMaps, tokens: Tensor) -> Tensor:
    assert maps.second is not None
    texts, ends = torch.arange(len(tokens), device=tokens.device), tokens.argmax(-1)
    first, second = maps.first[texts, :, ends], maps.second[texts, :, ends]
    return _pearson(first, second, torch.arange(first.shape[-1], device=tokens.device) <= ends[:, None, None])


def _pearson(first: Tensor, second: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute Pearson's correlation of two rows [..., P] over the entries in `mask` (None: all): float64 [...];
    0 if a row is constant up to rounding."""
    pair = torch.stack([first, second]).double()
    weight = torch.ones_like(pair) if mask is None else mask.to(pair.dtype).expand_as(pair)
    mean = (pair * weight).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True)
    centered = (pair - mean) * weight
    norms = torch.linalg.vector_norm(centered, dim=-1)
    constant = (norms <= 1e-6 * torch.linalg.vector_norm(pair * weight, dim=-1)).any(0)
    return torch.where(constant, 0.0, centered.prod(0).sum(-1) / norms.prod(0).clamp_min(1e-300))
