"""Differential attention V2: λ for each token and head, shared keys and values, no head norm.

Ye et al., "Differential Transformer V2" (2026; github.com/microsoft/unilm, Diff-Transformer-V2): a second query for
each head meets the same keys and values, and the output is (A1 − λ·A2)·V with λ = sigmoid(w·x). Without the head norm
the output has the scale of plain attention, and a λ near 0 leaves that alone. Where there are as many keys as queries,
as here, the second query is one more projection a layer: 7 % more parameters in ViT-B/16 than plain attention has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diffclip.attention.heads import split_heads
from diffclip.attention.lambdas import accumulator
from diffclip.attention.paired import PairedAttention


class DifferentialAttentionV2(PairedAttention):
    """Multi-head differential attention V2: `num_heads` values as plain attention has, two queries for each.

    `qkv` and `out_proj` are those of plain attention, so that a plain model with equal seeds starts with the same
    values in them; `q2_proj` and `lambda_proj` are what it adds.
    """

    def __init__(
        self, dim: int, num_heads: int, qkv_bias: bool = True, device: torch.device | None = None, **rest: Any
    ) -> None:
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, device=device, **rest)
        dtype = self.qkv.weight.dtype
        self.q2_proj = nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=dtype)
        self.lambda_proj = nn.Linear(dim, num_heads, bias=False, device=device, dtype=dtype)

    def token_lambdas(self, x: Tensor) -> Tensor:
        """λ of each head and token of x [B, N, C], in (0, 1): [B, H, N], float32 at least."""
        logits = self.lambda_proj(x).transpose(1, 2)
        return torch.sigmoid(logits.to(accumulator(logits.dtype)))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        first, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads)
        q = self._paired(first, self.q2_proj(x))
        return q, k.repeat_interleave(2, dim=1), v, self.token_lambdas(x)
