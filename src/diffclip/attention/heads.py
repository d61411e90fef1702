"""Split the fused projection into heads before the maps; apply the head norm and its factor after them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def split_heads(qkv: Tensor, heads: int, value_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split qkv [B, N, 3·C] into views q, k [B, heads, N, C/heads] and v [B, value_heads, N, C/value_heads]."""
    q, k, v = qkv.chunk(3, dim=-1)
    return by_head(q, heads), by_head(k, heads), by_head(v, value_heads)


def by_head(x: Tensor, heads: int) -> Tensor:
    """View x [B, N, C] as [B, heads, N, C/heads]."""
    batch, tokens, width = x.shape
    return x.view(batch, tokens, heads, width // heads).transpose(1, 2)


def finish_heads(
    out: Tensor, dtype: torch.dtype, norm_weight: Tensor | None, norm_eps: float, out_scale: float
) -> Tensor:
    """Apply the RMS norm to each head's output [B, H, N, e], then the factor, in `dtype`."""
    out = out.to(dtype)
    if norm_weight is not None:
        out = F.rms_norm(out, (out.shape[-1],), norm_weight.to(dtype), norm_eps)
    return out * out_scale if out_scale != 1.0 else out
