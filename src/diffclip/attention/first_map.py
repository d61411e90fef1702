"""Differential attention without its second map: half the heads, wide values, head norm and factor."""

from __future__ import annotations

from diffclip.attention.head_norm import FewerQueriesAttention, OneMapAttention
from diffclip.attention.registry import register_attention


@register_attention("differential-lambda0")
class FirstMapAttention(FewerQueriesAttention, OneMapAttention):
    """Differential attention with λ held at 0: the first map alone. No second map is computed."""

    @staticmethod
    def kept_heads(heads: int) -> list[int]:
        return list(range(0, heads, 2))
