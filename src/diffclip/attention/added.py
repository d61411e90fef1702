"""A second map for a layer that was trained without one: it starts as the layer that it was.

Each head gets a second query and key beside its own and shares its value; the output is (A1 − λ·A2)·V without a head
norm, with one λ a layer that starts at exactly 0 and with a gradient: exp(a·b) − exp(c·d) with a = c and b = d.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diffclip.attention.heads import split_heads
from diffclip.attention.module import LambdaAttention
from diffclip.attention.paired import PairedAttention


class AddedDifferentialAttention(LambdaAttention, PairedAttention):
    """Plain attention (`qkv`, `out_proj`) with `q2_proj` and `k2_proj` for a second map; λ_init is 0."""

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
