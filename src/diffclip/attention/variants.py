"""Differential attention without a head norm: V2, and a second map for a layer that was trained without one.

Both have two queries for each value of plain attention, and the output (A1 − λ·A2)·V.

V2 (Ye et al., "Differential Transformer V2", 2026; github.com/microsoft/unilm, Diff-Transformer-V2): both queries use
the same keys, and λ = sigmoid(w·x) for each token and head. Without the head norm the output has the scale of plain
attention, and a λ near 0 gives plain attention. Plain attention here has as many keys as queries, so the second query
needs one more projection per layer: 7 % more parameters in ViT-B/16 than with plain attention.

The added map has a second key too, and one λ per layer. λ starts at exactly 0, so that the layer first computes what
it computed before, but λ has a gradient: exp(a·b) − exp(c·d) with a = c and b = d.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from diffclip.attention.dispatch import differential_attention
from diffclip.attention.heads import by_head, split_heads
from diffclip.attention.lambdas import accumulation_dtype
from diffclip.attention.module import AttentionMaps, LambdaAttention, SelfAttention


class PairedAttention(SelfAttention):
    """(A1 − λ·A2)·V: plain attention with λ, a second query for each head, and perhaps a second key.

    `qkv` and `out_proj` are as in plain attention, so that a plain model with the same seed starts with the same values
    in them.
    """

    @abstractmethod
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Project x [B, N, C] to queries and keys [B, 2·H, N, d] in adjacent pairs, values [B, H, N, d], and λ, 0-dim
        or [B, H, N]."""

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        q, k, v, lam = self.project(x)
        dropout_p = self.attn_drop if self.training else 0.0
        out = differential_attention(q, k, v, lam, causal=causal, backend=self.backend, dropout_p=dropout_p)
        return out.transpose(1, 2).flatten(2)

    def attend_through_maps(
        self, x: Tensor, causal: bool, detach_norm: bool = False
    ) -> tuple[Tensor, AttentionMaps]:
        heads, maps = self._subtract_maps(*self.project(x), causal)
        return heads.transpose(1, 2).flatten(2), maps

    def _paired(self, first: Tensor, second: Tensor) -> Tensor:
        """Interleave first [B, H, N, d] and second [B, N, C] as adjacent heads [B, 2·H, N, d]."""
        return torch.stack([first, by_head(second, self.num_heads)], dim=2).flatten(1, 2)


class DifferentialAttentionV2(PairedAttention):
    """Multi-head differential attention V2: plain attention with `q2_proj` and `lambda_proj`."""

    def __init__(
        self, dim: int, num_heads: int, qkv_bias: bool = True, device: torch.device | None = None, **rest: Any
    ) -> None:
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, device=device, **rest)
        dtype = self.qkv.weight.dtype
        self.q2_proj = nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=dtype)
        self.lambda_proj = nn.Linear(dim, num_heads, bias=False, device=device, dtype=dtype)

    def token_lambdas(self, x: Tensor) -> Tensor:
        """Compute λ of each head and token of x [B, N, C], in (0, 1): [B, H, N], float32 at least."""
        logits = self.lambda_proj(x).transpose(1, 2)
        return torch.sigmoid(logits.to(accumulation_dtype(logits.dtype)))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        first, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads)
        q = self._paired(first, self.q2_proj(x))
        return q, k.repeat_interleave(2, dim=1), v, self.token_lambdas(x)


class AddedDifferentialAttention(LambdaAttention, PairedAttention):
    """Plain attention with `q2_proj` and `k2_proj` for a second map; λ_init is 0."""

    def __init__(
        self, dim: int, num_heads: int, qkv_bias: bool = True, device: torch.device | None = None, **rest: Any
    ) -> None:
        super().__init__(dim, num_heads, device=device, lambda_init=0.0, qkv_bias=qkv_bias, **rest)
        self.q2_proj, self.k2_proj = (
            nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=self.qkv.weight.dtype) for _ in range(2)
        )
        with torch.no_grad():  # both products are equal, so that λ is 0
            self.lambda_q2.copy_(self.lambda_q1)
            self.lambda_k2.copy_(self.lambda_k1)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads)
        q, k = self._paired(q, self.q2_proj(x)), self._paired(k, self.k2_proj(x))
        return q, k, v, self.current_lambda()
