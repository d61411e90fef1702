"""Attention with a second map: (A1 − λ·A2)·V."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from diffclip.attention.dispatch import differential_attention
from diffclip.attention.heads import by_head
from diffclip.attention.module import AttentionMaps, OutputAndMaps, SelfAttention
from diffclip.errors import say_once


class PairedAttention(SelfAttention):
    """(A1 − λ·A2)·V from pairs of heads. `qkv` and `out_proj` of a layer that has them are as in plain attention, so
    that a plain model with the same seed starts with the same values in them."""

    is_differential = True

    @abstractmethod
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Project x [B, N, C] to queries and keys [B, 2·H, N, d] in adjacent pairs, values [B, H, N, e], and λ, 0-dim
        or [B, H, N]."""

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        out = differential_attention(*self.project(x), causal=causal, backend=self.backend)
        return out.transpose(1, 2).flatten(2)

    def attend_through_maps(self, x: Tensor, causal: bool, detach_norm: bool = False) -> OutputAndMaps:
        if self.backend == "triton":
            say_once('attention backend "triton" never makes the maps: they come from "eager"')
        q, k, v, lam = self.project(x)
        maps = AttentionMaps.of(q, k, v, causal, lam)
        return self._finish(maps.combined.to(v.dtype) @ v, maps.first.dtype, detach_norm), maps

    def _paired(self, first: Tensor, second: Tensor) -> Tensor:
        """Interleave first [B, H, N, d] and second [B, N, C] as adjacent heads [B, 2·H, N, d]."""
        return torch.stack([first, by_head(second, self.num_heads)], dim=2).flatten(1, 2)
