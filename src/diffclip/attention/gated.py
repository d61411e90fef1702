"""Gated attention: a sigmoid gate, computed from the layer's input, on each head's output.

Qiu et al., "Gated Attention for Large Language Models" (arXiv:2505.06708), position G1: the output of a head is
multiplied by sigmoid(W·x) before the output projection, one number per element or one per head. As in differential
attention, a head can output nothing without a sink token, but it needs one map instead of two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diffclip.attention.module import AttentionMaps, SoftmaxAttention


class GatedAttention(SoftmaxAttention):
    """Plain attention (`qkv`, `out_proj`) with `gate_proj`: a gate for each element of each head's output."""

    headwise = False

    def __init__(self, dim: int, num_heads: int, device: torch.device | None = None, **rest: Any) -> None:
        super().__init__(dim, num_heads, device=device, **rest)
        gates = num_heads if self.headwise else dim
        self.gate_proj = nn.Linear(dim, gates, bias=False, device=device, dtype=self.qkv.weight.dtype)

    def _gated(self, heads: Tensor, x: Tensor) -> Tensor:
        gates = torch.sigmoid(self.gate_proj(x))  # [B, N, C], or [B, N, H]
        return heads * (gates.repeat_interleave(self.head_dim, dim=-1) if self.headwise else gates)

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        return self._gated(super()._attend(x, causal), x)

    def own_values(self, x: Tensor) -> Tensor:
        return self._gated(super().own_values(x), x)

    def attend_through_maps(
        self, x: Tensor, causal: bool, detach_norm: bool = False
    ) -> tuple[Tensor, AttentionMaps]:
        heads, maps = super().attend_through_maps(x, causal)
        return self._gated(heads, x), maps


class HeadwiseGatedAttention(GatedAttention):
    """`GatedAttention` with one gate per head."""

    headwise = True
