"""Rivals with one map for each value head of differential attention.

DiffCLIP has half as many value heads as CLIP, a head norm and a factor, and subtracts a second map. These layers show
how much of a difference each part makes alone.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from diffclip.attention.head_norm import FewerQueriesAttention, NormedAttention
from diffclip.attention.heads import split_heads
from diffclip.attention.module import PublishedNames
from diffclip.attention.registry import register_attention
from diffclip.attention.softmax import SoftmaxAttention


@register_attention("differential-lambda0")
class FirstMapAttention(FewerQueriesAttention, SoftmaxAttention):
    """Differential attention with λ held at 0: the first map alone. No second map is computed."""

    published_names: ClassVar[PublishedNames | None] = None

    @staticmethod
    def kept_heads(heads: int) -> list[int]:
        return list(range(0, heads, 2))


@register_attention("half-heads-norm")
class HalfHeadsNormAttention(NormedAttention, SoftmaxAttention):
    """Plain attention with half as many heads, whose queries, keys and values are twice as wide, head norm and factor.
    Its projections have the names and sizes of plain attention."""

    published_names: ClassVar[PublishedNames | None] = None

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
