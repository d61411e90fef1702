"""λ: its re-parameterization, and its shapes.

λ = exp(λ_q1·λ_k1) − exp(λ_q2·λ_k2) + λ_init (paper Section 3.2,
after Differential Transformer, arXiv:2410.05258, Section 2.1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffclip.errors import InputError


def compute_lambda(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, lambda_init: float) -> Tensor:
    """Compute λ of one layer as a 0-dim float32 tensor, from its four vectors of head size [d]."""
    first = torch.exp((q1.float() * k1.float()).sum())
    second = torch.exp((q2.float() * k2.float()).sum())
    return first - second + lambda_init


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for computing maps, λ and norms: float32, or float64 for float64 inputs."""
    return torch.promote_types(dtype, torch.float32)


def per_head(lam: float | Tensor, v: Tensor) -> Tensor:
    """Return λ in float32 (float64 if v is), shaped to scale [B, H, N, …]: as [], [1, H, 1, 1] or [B, H, N, 1].

    Raises:
        InputError: λ is neither a number, nor 0-dim, nor [H], nor [B, H, N].
    """
    batch, heads, tokens, _ = v.shape
    lam = torch.as_tensor(lam, dtype=accumulation_dtype(v.dtype), device=v.device)
    if lam.ndim == 0:
        return lam
    # compare `ndim` first: in an export, comparing shapes of different lengths would tie the batch to the heads
    if lam.ndim == 1 and lam.shape == (heads,):
        return lam.view(1, heads, 1, 1)
    if lam.shape == (batch, heads, tokens):
        return lam.unsqueeze(-1)
    raise InputError(
        f"lam has shape {list(lam.shape)}: give a number, a 0-dim tensor, [{heads}] (heads) "
        f"or [{batch}, {heads}, {tokens}] (batch, heads, tokens)"
    )
