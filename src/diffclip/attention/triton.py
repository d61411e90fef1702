"""The fused kernels: both maps, their difference, the product with V, the head norm and the factor after it at once.

Plain attention has a fused kernel in torch already, which is used here too.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from diffclip.attention.sdpa import softmax

__all__ = ["differential", "differential_packed", "softmax", "unfusable"]

_INSTALLED = importlib.util.find_spec("triton") is not None
# Triton's interpreter runs the kernels on a CPU, slowly, to test them; like Triton, this asks once
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_LARGEST = (128, 256)  # head sizes of queries and of values


def unfusable(q: Tensor, v: Tensor) -> str | None:
    """Why the kernels cannot take q [B, 2·H, N, d] and v [B, H, N, e], or None if they can."""
    if not _INSTALLED:
        return "Triton is not installed"
    if q.device.type != "cuda" and not _INTERPRETED:
        return f"the inputs are on {q.device.type}, and the kernels run on a GPU"
    if q.dtype not in _TYPES:
        return f"the inputs are {q.dtype}"
    if q.shape[-1] > _LARGEST[0] or v.shape[-1] > _LARGEST[1]:
        return f"head sizes {q.shape[-1]} and {v.shape[-1]} are above {_LARGEST[0]} and {_LARGEST[1]}"
    return None


def differential(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    causal: bool,
    gain: Tensor | None,
    eps: float,
    out_scale: float,
) -> Tensor:
    """As `diffclip.differential_attention`, λ as `lambdas.per_head` shapes it."""
    from diffclip.attention.kernels.operator import fused_attention

    lam = lam.expand(*v.shape[:3], 1).squeeze(-1)
    out: Tensor = fused_attention(q, k, v, lam, gain, causal, eps, out_scale, _keep(q, k, v, lam, gain))[0]
    return out


def differential_packed(
    qkv: Tensor, heads: int, lam: Tensor, causal: bool, gain: Tensor | None, eps: float, out_scale: float
) -> Tensor:
    """The same for qkv [B, N, 3·C] from one projection, λ as `lambdas.per_head` shapes it; returns [B, H, N, e]."""
    from diffclip.attention.kernels.operator import fused_attention_packed

    batch, tokens, _ = qkv.shape
    lam = lam.expand(batch, heads // 2, tokens, 1).squeeze(-1)
    keep = _keep(qkv, lam, gain)
    out: Tensor = fused_attention_packed(qkv, lam, gain, heads, causal, eps, out_scale, keep)[0]
    return out


def _keep(*inputs: Tensor | None) -> bool:
    """Whether there will be a backward pass."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
