"""Attention rollout: how much of each input token is in each output token if layers only mixed.

Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (ACL 2020): the product over layers of (A + 1)/2 with A
the mean over heads. A map of a differential layer has a sign and rows that sum to 1 − λ; what flows is measured by
its magnitude, so A is |A1 − λ·A2| with rows divided by their sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diffclip.attention import AttentionMaps


def rollout(maps: Sequence[AttentionMaps]) -> Tensor:
    """The rollout through `maps`, in order of depth: [B, N, N] ≥ 0, each row sums to 1."""
    tokens = maps[0].first.shape[-1]
    identity = torch.eye(tokens, dtype=maps[0].first.dtype, device=maps[0].first.device)
    flow = identity.expand(len(maps[0].first), -1, -1)
    for one in maps:
        mixed = one.combined.detach().abs().mean(1)
        total = mixed.sum(-1, keepdim=True)
        # where λ is 1 and both maps agree nothing is mixed in
        mixed = torch.where(total > 0, mixed / total, identity)
        flow = 0.5 * (mixed + identity) @ flow
    return flow
