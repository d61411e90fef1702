"""torch's fused attention. (A1 − λ·A2)·V is A1·V − λ·(A2·V): two fused calls that share V, as timm arranges it.

torch's flash kernel on the CPU wants queries, keys and values of one size. Filling the smaller of the two with
zeros changes no score, and for long rows costs less than the maps that the fallback would make.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

# Shorter rows than this are quicker through the fallback than padded: see benchmarks/attention.py.
PAD_FROM_TOKENS = 512


def softmax(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """A·V for q, k, v [B, heads, N, d]."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def differential(q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool) -> Tensor:
    """(A1 − λ·A2)·V before the head norm: q, k [B, 2·H, N, d], v [B, H, N, e], λ as `lambdas.per_head` shapes it."""
    scale, value_dim = q.shape[-1] ** -0.5, v.shape[-1]
    missing = value_dim - q.shape[-1]
    if q.device.type == "cpu" and q.shape[-2] >= PAD_FROM_TOKENS and missing:
        q, k, v = (F.pad(t, (0, max(m, 0))) for t, m in ((q, missing), (k, missing), (v, -missing)))
    first, second = (
        F.scaled_dot_product_attention(q[:, i::2], k[:, i::2], v, is_causal=causal, scale=scale)[
            ..., :value_dim
        ]
        for i in (0, 1)
    )
    return first.to(lam.dtype) - lam * second.to(lam.dtype)
