"""Plain attention with as many heads as differential attention has pairs: queries, keys and values twice as wide.

DiffCLIP has half as many value heads as CLIP. These rivals show how much of a difference this alone makes, with and
without DiffCLIP's head norm and factor.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from diffclip.attention.head_norm import OneMapAttention
from diffclip.attention.heads import split_heads
from diffclip.attention.module import PublishedNames
from diffclip.attention.registry import register_attention
from diffclip.attention.softmax import SoftmaxAttention


@register_attention("half-heads-norm")
class HalfHeadsNormAttention(OneMapAttention):
    """Plain attention with half as many heads, whose queries, keys and values are twice as wide, head norm and factor.

    Its projections have the names and sizes of plain attention.
    """

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return split_heads(self.qkv(x), self.num_heads // 2, self.num_heads // 2)


@register_attention("half-heads")
class HalfHeadsAttention(SoftmaxAttention):
    """Plain attention with half as many heads as the configuration says, twice as wide."""

    pairs_heads = True
    published_names: ClassVar[PublishedNames | None] = None

    def __init__(self, dim: int, num_heads: int, **rest: Any) -> None:
        super().__init__(dim, num_heads, **rest)
        self.num_heads, self.head_dim = self.num_heads // 2, 2 * self.head_dim
