"""A batch of crops made at once, on any device, from pictures that lie there.

A resize with a filter is linear along rows and along columns, so each crop is two matrix products with weights of its
own, which are zero outside its box. The filters are those of torch's and Pillow's antialiased resize.

Shapes: N pictures, the largest of H by W; B crops of S by S pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def resized_crops(pictures: Tensor, chosen: Tensor, crops: Tensor, size: int, interpolation: str) -> Tensor:
    """What `TrainTransform.cut` makes of each picture; a photograph's values differ by 2 at most.

    Args:
        pictures: uint8 [N, 3, H, W], smaller ones in the top left corner.
        chosen: int64 [B], which pictures.
        crops: int64 [B, 5], the fields of `Crop`.
        size: S.
        interpolation: "bilinear" or "bicubic".

    Returns:
        uint8 [B, 3, S, S]. All tensors are on one device, which nothing waits for.
    """
    top, left, height, width, mirrored = crops.unbind(1)
    rows = _weights(top, height, pictures.shape[2], size, interpolation)
    columns = _weights(left, width, pictures.shape[3], size, interpolation)
    columns = torch.where(mirrored.bool()[:, None, None], columns.flip(1), columns)
    values = pictures[chosen].float()
    # in bytes between the two as well, as both libraries have it
    values = torch.einsum("bchw,bsw->bchs", values, columns).add_(0.5).floor_().clamp_(0, 255)
    values = torch.einsum("bchs,bth->bcts", values, rows).add_(0.5).floor_().clamp_(0, 255)
    return values.to(torch.uint8)


def _weights(start: Tensor, length: Tensor, extent: int, size: int, interpolation: str) -> Tensor:
    """How much each of `extent` pixels counts for each of `size`, float32 [B, size, extent], where the part of
    `length` [B] from `start` [B] on is resized."""
    reach, weigh = (1, _triangle) if interpolation == "bilinear" else (2, _cubic)
    places = torch.arange(extent, device=start.device) - start[:, None]
    inside = (places >= 0) & (places < length[:, None])
    scale = (length / size)[:, None]
    centres = (torch.arange(size, device=start.device) + 0.5) * scale
    # one that is enlarged is filtered as wide as its own pixels are apart
    distance = (places[:, None] + 0.5 - centres[..., None]).abs() / scale.clamp(min=1)[..., None]
    weights = weigh(distance) * (inside[:, None] & (distance < reach))
    return weights / weights.sum(2, keepdim=True)


def _triangle(distance: Tensor) -> Tensor:
    return 1 - distance


def _cubic(distance: Tensor) -> Tensor:
    """Keys (1981) with a = −1/2."""
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, far)
