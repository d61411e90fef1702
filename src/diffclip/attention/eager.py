"""The plain formulas, in which every map is made. They are the reference for tests of the fast backends.

Softmax rows, their difference and λ are float32 at least; the product with V is in V's dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffclip.attention.lambdas import accumulation_dtype


def softmax_maps(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """Compute softmax(Q·Kᵀ/√d), float32 at least, [B, heads, N, N] for q, k [B, heads, N, d]."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores.softmax(dim=-1, dtype=accumulation_dtype(q.dtype))


def softmax(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """A·V for q, k, v [B, heads, N, d]."""
    return softmax_maps(q, k, causal).to(v.dtype) @ v


def differential(q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool) -> Tensor:
    """(A1 − λ·A2)·V before the head norm: q, k [B, 2·H, N, d], v [B, H, N, e], λ as `lambdas.per_head` shapes it."""
    # two calls: if both were slices of one tensor, each would fill a gradient of that tensor's size
    first, second = (softmax_maps(q[:, i::2], k[:, i::2], causal) for i in (0, 1))
    return (first - lam * second).to(v.dtype) @ v
