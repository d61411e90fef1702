"""Rivals with one map for each value head of differential attention.

DiffCLIP has half as many value heads as CLIP, a head norm and a factor, and subtracts a second map. These layers show
how much of a difference each part makes alone.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from diffclip.attention import eager
from diffclip.attention.dispatch import softmax_attention
from diffclip.attention.head_norm import FewerQueriesAttention, NormedAttention
from diffclip.attention.heads import split_heads
from diffclip.attention.lambdas import accumulation_dtype
from diffclip.attention.module import AttentionMaps, OutputAndMaps, PublishedNames
from diffclip.attention.registry import register_attention
from diffclip.attention.softmax import SoftmaxAttention


class OneMapAttention(NormedAttention):
    """`NormedAttention` with a softmax map for each value head."""

    @abstractmethod
    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x [B, N, C] to queries and keys [B, H, N, any], and values [B, H, N, 2·d]."""

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        out = softmax_attention(*self._split(x), causal, self.backend)
        return self._finish(out, accumulation_dtype(out.dtype))

    def attend_through_maps(self, x: Tensor, causal: bool, detach_norm: bool = False) -> OutputAndMaps:
        q, k, v = self._split(x)
        maps = AttentionMaps(eager.softmax_maps(q, k, causal), None, None, q, k, v)
        return self._finish(maps.combined.to(v.dtype) @ v, maps.first.dtype, detach_norm), maps


@register_attention("differential-lambda0")
class FirstMapAttention(FewerQueriesAttention, OneMapAttention):
    """Differential attention with λ held at 0: the first map alone. No second map is computed."""

    @staticmethod
    def kept_heads(heads: int) -> list[int]:
        return list(range(0, heads, 2))


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
