"""torch's fused attention. (A1 − λ·A2)·V is A1·V − λ·(A2·V): two fused calls that share V, as in timm.

On a CPU, any arrangement of fused calls multiplies V twice, and the fused kernel also needs values of the queries'
size. Blocks of rows (blocked.py) multiply V once, and are faster unless rows are very short.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from diffclip.attention import blocked

# On a CPU, use blocks from this many tokens on: see benchmarks/attention.py.
BLOCKED_FROM_TOKENS = 48


def softmax(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """A·V for q, k, v [B, heads, N, d]."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def differential(q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool) -> Tensor:
    """(A1 − λ·A2)·V before the head norm: q, k [B, 2·H, N, d], v [B, H, N, e], λ as `lambdas.per_head` shapes it."""
    if q.device.type == "cpu" and q.shape[-2] >= BLOCKED_FROM_TOKENS:
        return blocked.differential(q, k, v, lam, causal)
    first, second = (softmax(q[:, i::2], k[:, i::2], v, causal) for i in (0, 1))
    return first.to(lam.dtype) - lam * second.to(lam.dtype)
