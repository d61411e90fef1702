"""Multi-head attention as in the plain CLIP (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from diffclip.attention import eager
from diffclip.attention.dispatch import softmax_attention
from diffclip.attention.heads import split_heads
from diffclip.attention.module import AttentionMaps, OutputAndMaps, PublishedNames, SelfAttention
from diffclip.attention.registry import register_attention


@register_attention("softmax")
class SoftmaxAttention(SelfAttention):
    """Plain multi-head attention: `num_heads` maps."""

    published_names: ClassVar[PublishedNames | None] = {
        "vision": {"out_proj.": ("proj.",)},
        "text": {"qkv.": ("in_proj_",)},
    }

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        q, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads)
        out = softmax_attention(q, k, v, causal, self.backend)
        return out.transpose(1, 2).flatten(2)

    def attend_through_maps(self, x: Tensor, causal: bool, detach_norm: bool = False) -> OutputAndMaps:
        q, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads)
        maps = AttentionMaps(eager.softmax_maps(q, k, causal), None, None, q, k, v)
        return (maps.combined.to(v.dtype) @ v).transpose(1, 2).flatten(2), maps
