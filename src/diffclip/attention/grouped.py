"""Grouped differential attention: fewer heads for noise than for signal (arXiv:2510.06949).

Up to three heads share a second map, the ratio that the paper finds best. The number of first maps, their values, λ and
the head norm are as in differential attention, so that a comparison shows the effect of the sharing alone.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from diffclip.attention.differential import DifferentialAttention
from diffclip.attention.head_norm import FewerQueriesAttention
from diffclip.attention.module import PublishedNames
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

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q, k, v = self._split(x)
        count = self.num_heads // 2

        def pair(heads: Tensor) -> Tensor:
            signal, noise = heads[:, :count], heads[:, count:]
            noise = noise.repeat_interleave(SIGNAL_HEADS_PER_NOISE_HEAD, dim=1)[:, :count]
            return torch.stack([signal, noise], dim=2).flatten(1, 2)

        return pair(q), pair(k), v, self.current_lambda()
