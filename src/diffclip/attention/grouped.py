"""Grouped differential attention: fewer heads for noise than for signal (arXiv:2510.06949).

Up to three heads share a second map, the ratio that the paper finds best. The number of first maps, their values, λ and
the head norm are as in differential attention, so that a comparison shows the effect of the sharing alone.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from diffclip.attention.differential import DifferentialAttention
from diffclip.attention.dispatch import differential_attention
from diffclip.attention.head_norm import HEAD_NORM_EPS, FewerQueriesAttention
from diffclip.attention.module import AttentionMaps, PublishedNames
from diffclip.attention.registry import register_attention

SIGNAL_HEADS_PER_NOISE_HEAD = 3


@register_attention("differential-grouped")
class GroupedDifferentialAttention(FewerQueriesAttention, DifferentialAttention):
    """Differential attention in which groups of up to three pairs have the second query and key of the first pair."""

    published_names: ClassVar[PublishedNames | None] = None
    recreated_when_published = False

    @staticmethod
    def kept_heads(heads: int) -> list[int]:
        return [*range(0, heads, 2), *range(1, heads, 2 * SIGNAL_HEADS_PER_NOISE_HEAD)]

    def _pairs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Project x [B, N, C] to queries and keys [B, 2·H, N, d] in adjacent pairs, values [B, H, N, 2·d], and λ."""
        q, k, v = self._split(x)
        count = self.num_heads // 2

        def pair(heads: Tensor) -> Tensor:
            signal, noise = heads[:, :count], heads[:, count:]
            noise = noise.repeat_interleave(SIGNAL_HEADS_PER_NOISE_HEAD, dim=1)[:, :count]
            return torch.stack([signal, noise], dim=2).flatten(1, 2)

        return pair(q), pair(k), v, self.current_lambda()

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        return (
            differential_attention(
                *self._pairs(x),
                causal=causal,
                backend=self.backend,
                norm_weight=self.norm_weight,
                norm_eps=HEAD_NORM_EPS,
                out_scale=self.out_scale,
                dropout_p=self.attn_drop if self.training else 0.0,
            )
            .transpose(1, 2)
            .flatten(2)
        )

    def attend_through_maps(
        self, x: Tensor, causal: bool, detach_norm: bool = False
    ) -> tuple[Tensor, AttentionMaps]:
        heads, maps = self._subtract_maps(*self._pairs(x), causal)
        return self._finish(heads, maps.first.dtype, detach_norm), maps
