"""Multi-head attention as in the plain CLIP (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from diffclip.attention.dispatch import softmax_attention
from diffclip.attention.heads import split_heads
from diffclip.attention.lambdas import accumulation_dtype
from diffclip.attention.module import AttentionMaps, OutputAndMaps, PublishedNames, SelfAttention
from diffclip.attention.registry import register_attention


@register_attention("softmax")
class SoftmaxAttention(SelfAttention):
    """Plain multi-head attention: `num_heads` maps."""

    published_names: ClassVar[PublishedNames | None] = {
        "vision": {"out_proj.": ("proj.",)},
        "text": {"qkv.": ("in_proj_",)},
    }

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x [B, N, C] to queries and keys [B, H, N, any], and values [B, H, N, C/H]."""
        return split_heads(self.qkv(x), self.num_heads, self.num_heads)

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        out = softmax_attention(*self._split(x), causal, self.backend)
        return self._finish(out, accumulation_dtype(out.dtype))

    def attend_through_maps(self, x: Tensor, causal: bool, detach_norm: bool = False) -> OutputAndMaps:
        q, k, v = self._split(x)
        maps = AttentionMaps.of(q, k, v, causal)
        return self._finish(maps.combined.to(v.dtype) @ v, maps.first.dtype, detach_norm), maps
