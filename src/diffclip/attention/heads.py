"""One fused projection of queries, keys and values, seen by heads."""

from __future__ import annotations

from torch import Tensor


def split_heads(qkv: Tensor, heads: int, value_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [B, N, 3·C] to views q, k [B, heads, N, C/heads] and v [B, value_heads, N, C/value_heads]."""
    q, k, v = qkv.chunk(3, dim=-1)
    return _by_head(q, heads), _by_head(k, heads), _by_head(v, value_heads)


def _by_head(x: Tensor, heads: int) -> Tensor:
    batch, tokens, width = x.shape
    return x.view(batch, tokens, heads, width // heads).transpose(1, 2)
