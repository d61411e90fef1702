"""Grad-ECLIP: a token speaks for a pair by the channels of its value, where the query meets its key.

Zhao et al., "Gradient-based Visual Explanation for CLIP" (ICML 2024) and "Grad-ECLIP" (arXiv:2502.18816): of the last
layer, with o the class token's output before the output projection, v_i, k_i the value and key of patch i, q the class
token's query, y the pair's logit, and Φ scaling the patches of an image to [0, 1],

    H_i = ReLU(Σ_c w_c · λ_i · v_ic),   w = ∂y/∂o,   λ_i = Φ(cos(q, k_i)),

the cosine over the channels of all heads. The sum of w_c·v_ic over the channels of head h is ∂y/∂A_h,i, so that
H_i = ReLU(λ_i · Σ_h ∂y/∂A_h,i): the values are those that are attended, and a gate is part of w.

A differential head attends by A = A1 − λ·A2, with o before its head norm (see `relevance` for `norm`). Its loosened
weight is Φ(cos(q1, k1_i) − λ·cos(q2, k2_i)); where λ is of heads or tokens (V2), each head's part of the second cosine
has its own. Of several layers the sums are added before the ReLU, as the authors do for texts. The authors' program
attends with a single head and sends queries and keys through the output projection; the paper's formula does neither.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diffclip.attention import AttentionMaps


def grad_eclip_of(
    maps: Sequence[AttentionMaps],
    of: Sequence[Tensor],
    rows: Tensor,
    among: Tensor,
    head: int | None = None,
) -> Tensor:
    """H [B, N] ≥ 0 of the layers `maps`, whose gradients are `of`; 0 outside `among`.

    Args:
        rows: the token that is explained, [B]: the class token, or the end of a text.
        among: the tokens that may explain it, bool [B, N]; Φ is over them.
        head: one head's channels w and values alone.
    """
    each = torch.arange(len(rows), device=rows.device)
    total = torch.zeros_like(among, dtype=of[0].dtype)
    for one, gradient in zip(maps, of, strict=True):
        row = gradient[each, :, rows]
        channels = row.sum(1) if head is None else row[:, head]
        total = total + loosened(one, rows, among) * channels
    return total.clamp_min(0) * among


def loosened(maps: AttentionMaps, rows: Tensor, among: Tensor) -> Tensor:
    """The spatial weight Φ(cos(q, k_i)) of tokens `rows` [B], in [0, 1] over the tokens `among` [B, N]: [B, N]; 1
    where all are equal."""
    assert maps.queries is not None
    assert maps.keys is not None
    each = torch.arange(len(rows), device=rows.device)
    query, keys = maps.queries.detach()[each, :, rows].float(), maps.keys.detach().float()
    products = (keys @ query[..., None])[..., 0]  # [B, heads, N]
    lengths = keys.square().sum(-1)
    if maps.second is None or maps.lam is None:
        found = _cosine(products, query, lengths).sum(1)
    else:
        lam = maps.lam.detach()
        lam = lam if lam.ndim == 0 else lam.expand(*maps.first.shape[:3], 1)[each, :, rows]
        first, second = (
            _cosine(products[:, part::2], query[:, part::2], lengths[:, part::2]) for part in (0, 1)
        )
        found = (first - lam * second).sum(1)
    low = found.masked_fill(~among, torch.inf).amin(-1, keepdim=True)
    high = found.masked_fill(~among, -torch.inf).amax(-1, keepdim=True)
    return torch.where(high > low, (found - low) / (high - low), 1.0)


def _cosine(products: Tensor, query: Tensor, lengths: Tensor) -> Tensor:
    """Each head's part [B, H, N] of the cosine over the channels of all heads."""
    norms = query.square().sum((1, 2)).sqrt()[:, None] * lengths.sum(1).sqrt()
    return products / norms.clamp_min(1e-12)[:, None]
