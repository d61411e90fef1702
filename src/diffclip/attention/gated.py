"""Gated attention: a sigmoid gate, computed from the layer's input, on each head's output.

Qiu et al., "Gated Attention for Large Language Models" (arXiv:2505.06708), position G1: the output of a head is
multiplied by sigmoid(W·x) before the output projection, one number per element. As in differential attention, a head
can output nothing without a sink token, but it needs one map instead of two.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from diffclip.attention.module import OutputAndMaps, PublishedNames, StartingValues
from diffclip.attention.registry import register_attention
from diffclip.attention.softmax import SoftmaxAttention


@register_attention("gated")
class GatedAttention(SoftmaxAttention):
    """Plain attention (`qkv`, `out_proj`) with `gate_proj`: a gate for each element of each head's output."""

    published_names: ClassVar[PublishedNames | None] = None
    has_bias = False

    def __init__(self, dim: int, num_heads: int, device: torch.device | None = None, **rest: Any) -> None:
        super().__init__(dim, num_heads, device=device, **rest)
        self.gate_proj = nn.Linear(dim, dim, bias=self.has_bias, device=device, dtype=self.qkv.weight.dtype)

    def _gated(self, heads: Tensor, x: Tensor) -> Tensor:
        return heads * torch.sigmoid(self.gate_proj(x))

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        return self._gated(super()._attend(x, causal), x)

    def own_values(self, x: Tensor) -> Tensor:
        return self._gated(super().own_values(x), x)

    def attend_through_maps(self, x: Tensor, causal: bool, detach_norm: bool = False) -> OutputAndMaps:
        heads, maps = super().attend_through_maps(x, causal)
        return self._gated(heads, x), maps


@register_attention("gated-open")
class OpenGatedAttention(GatedAttention):
    """`GatedAttention` with a bias of 1 in the gate, which starts at 0.73 in place of 0.5.

    OpenCLIP's text tower starts its gates like this: a gate of 0.5 halves what a layer adds to the residual stream
    (github.com/mlfoundations/open_clip, src/open_clip/transformer.py).
    """

    has_bias = True

    @classmethod
    def starting_value(cls, name: str, shape: torch.Size, start: StartingValues) -> Tensor | None:
        value = super().starting_value(name, shape, start)
        return torch.ones_like(value) if value is not None and name == "gate_proj.bias" else value
