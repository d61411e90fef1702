"""A second map for a layer that was trained without one, with a second query and a second key for each head.

The layer has one λ, which starts at exactly 0, so that the layer first computes what it computed before, but λ has a
gradient: exp(a·b) − exp(c·d) with a = c and b = d.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diffclip.attention.differential import LambdaAttention
from diffclip.attention.heads import split_heads
from diffclip.attention.module import StartingValues
from diffclip.attention.registry import register_attention


@register_attention("differential-added")
class AddedDifferentialAttention(LambdaAttention):
    """Plain attention with `q2_proj` and `k2_proj` for a second map; λ_init is 0."""

    lambda_init = 0.0

    def __init__(
        self, dim: int, num_heads: int, qkv_bias: bool = True, device: torch.device | None = None, **rest: Any
    ) -> None:
        super().__init__(dim, num_heads, device=device, qkv_bias=qkv_bias, **rest)
        self.add_lambda_vectors(device)
        self.q2_proj, self.k2_proj = (
            nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=self.qkv.weight.dtype) for _ in range(2)
        )
        with torch.no_grad():  # both products are equal, so that λ is 0
            self.lambda_q2.copy_(self.lambda_q1)
            self.lambda_k2.copy_(self.lambda_k1)

    @classmethod
    def starting_value(cls, name: str, shape: torch.Size, start: StartingValues) -> Tensor | None:
        # the vectors of both products have the same values, so that λ is 0
        shared = {"lambda_q2": "lambda_q1", "lambda_k2": "lambda_k1"}
        return super().starting_value(shared.get(name, name), shape, start)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads)
        q, k = self._paired(q, self.q2_proj(x)), self._paired(k, self.k2_proj(x))
        return q, k, v, self.current_lambda()
