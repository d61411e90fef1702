"""The initial value, the dtype and the shapes of λ."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor


def lambda_init_of_layer(lambda_init: float | Literal["dynamic"], layer: int) -> float:
    """λ_init of layer `layer` (0-based in its tower), paper Section 4.5 and Differential Transformer Section 2.1."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer) if lambda_init == "dynamic" else float(lambda_init)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for computing maps, λ and norms: float32, or float64 for float64 inputs."""
    return torch.promote_types(dtype, torch.float32)


def per_head(lam: float | Tensor, v: Tensor) -> Tensor:
    """Return λ in float32 (float64 if v is), shaped to scale [B, H, N, …]: as [], [1, H, 1, 1] or [B, H, N, 1].
    `ValueError` is raised if λ is neither a number, nor 0-dim, nor [H], nor [B, H, N]."""
    batch, heads, tokens, _ = v.shape
    lam = torch.as_tensor(lam, dtype=accumulation_dtype(v.dtype), device=v.device)
    if lam.ndim == 0:
        return lam
    # compare `ndim` first: in an export, comparing shapes of different lengths would tie the batch to the heads
    if lam.ndim == 1 and lam.shape == (heads,):
        return lam.view(1, heads, 1, 1)
    if lam.shape == (batch, heads, tokens):
        return lam.unsqueeze(-1)
    raise ValueError(
        f"lam has shape {list(lam.shape)}: give a number, a 0-dim tensor, [{heads}] (heads) "
        f"or [{batch}, {heads}, {tokens}] (batch, heads, tokens)"
    )
