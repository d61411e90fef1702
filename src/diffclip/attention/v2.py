"""Differential attention V2 (Ye et al., "Differential Transformer V2", 2026; github.com/microsoft/unilm).

Both queries use the same keys, and λ = sigmoid(w·x) for each token and head. Without the head norm the output has the
scale of plain attention, and a λ near 0 gives plain attention. Plain attention here has as many keys as queries, so the
second query needs one more projection per layer: 7 % more parameters in ViT-B/16 than with plain attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diffclip.attention.heads import split_heads
from diffclip.attention.lambdas import accumulation_dtype
from diffclip.attention.module import StartingValues
from diffclip.attention.paired import PairedAttention
from diffclip.attention.registry import register_attention


@register_attention("differential-v2")
class DifferentialAttentionV2(PairedAttention):
    """Multi-head differential attention V2: plain attention with `q2_proj` and `lambda_proj`."""

    def __init__(
        self, dim: int, num_heads: int, qkv_bias: bool = True, device: torch.device | None = None, **rest: Any
    ) -> None:
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, device=device, **rest)
        dtype = self.qkv.weight.dtype
        self.q2_proj = nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=dtype)
        self.lambda_proj = nn.Linear(dim, num_heads, bias=False, device=device, dtype=dtype)

    @classmethod
    def starting_value(cls, name: str, shape: torch.Size, start: StartingValues) -> Tensor | None:
        std = 0.02 if name == "lambda_proj.weight" else None  # λ starts near one half
        return start(name, shape, std)

    def token_lambdas(self, x: Tensor) -> Tensor:
        """Compute λ of each head and token of x [B, N, C], in (0, 1): [B, H, N], float32 at least."""
        logits = self.lambda_proj(x).transpose(1, 2)
        return torch.sigmoid(logits.to(accumulation_dtype(logits.dtype)))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        first, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads)
        q = self._paired(first, self.q2_proj(x))
        return q, k.repeat_interleave(2, dim=1), v, self.token_lambdas(x)
