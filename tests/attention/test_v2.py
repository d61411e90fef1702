"""Differential attention V2: the formula, in every backend."""

from __future__ import annotations

import pytest
import torch
from by_hand import check_formula

from diffclip.attention import DifferentialAttentionV2


def by_hand(layer: DifferentialAttentionV2, x: torch.Tensor, causal: bool) -> torch.Tensor:
    """Head by head and map by map."""
    tokens, width = x.shape[1:]
    size = width // layer.num_heads
    q1, k, v = layer.qkv(x).chunk(3, -1)
    q2 = layer.q2_proj(x)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1) & causal
    heads = []
    for head in range(layer.num_heads):
        own = slice(head * size, (head + 1) * size)

        def attended(q: torch.Tensor, own: slice = own) -> torch.Tensor:
            scores = q[..., own] @ k[..., own].mT / size**0.5
            return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[..., own]

        lam = torch.sigmoid(x @ layer.lambda_proj.weight[head])[..., None]
        heads.append(attended(q1) - lam * attended(q2))
    return layer.out_proj(torch.cat(heads, -1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("tokens", [9, 150])
def test_it_is_the_formula_forward_and_backward(backend: str, causal: bool, tokens: int) -> None:
    torch.manual_seed(0)
    layer = DifferentialAttentionV2(24, 3).double()  # an odd number of heads is fine: no pair shares a value
    layer.backend = backend
    check_formula(layer, by_hand, torch.randn(2, tokens, 24, dtype=torch.float64), causal)
