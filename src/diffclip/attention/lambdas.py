"""λ: its re-parameterisation, and how the shapes it may have meet the heads.

λ = exp(λ_q1·λ_k1) − exp(λ_q2·λ_k2) + λ_init (paper Section 3.2; Differential Transformer, arXiv:2410.05258, Section 2.1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffclip.errors import InputError


def reparameterised(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, lambda_init: float) -> Tensor:
    """λ of one layer as a 0-dim float32 tensor, from its four vectors of head size [d]."""
    first = torch.exp((q1.float() * k1.float()).sum())
    second = torch.exp((q2.float() * k2.float()).sum())
    return first - second + lambda_init


def per_head(lam: float | Tensor, batch: int, heads: int, tokens: int, device: torch.device) -> Tensor:
    """λ in float32, shaped to scale maps or outputs [B, H, N, …]: one of [], [1, H, 1, 1] and [B, H, N, 1].

    Raises:
        InputError: λ is neither a number, nor 0-dim, nor [H], nor [B, H, N].
    """
    lam = torch.as_tensor(lam, dtype=torch.float32, device=device)
    if lam.ndim == 0:
        return lam
    if lam.shape == (heads,):
        return lam.view(1, heads, 1, 1)
    if lam.shape == (batch, heads, tokens):
        return lam.unsqueeze(-1)
    raise InputError(
        f"lam has shape {list(lam.shape)}: give a number, a 0-dim tensor, [{heads}] (heads) "
        f"or [{batch}, {heads}, {tokens}] (batch, heads, tokens)"
    )
