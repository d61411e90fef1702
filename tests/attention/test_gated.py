"""Gated attention: the formula and its map."""

from __future__ import annotations

import pytest
import torch
from by_hand import check_formula

from diffclip import InputError
from diffclip.attention import GatedAttention, HeadwiseGatedAttention
from diffclip.config import variant_config


def by_hand(layer: GatedAttention, x: torch.Tensor, causal: bool) -> torch.Tensor:
    """Head by head, each output times its gates."""
    tokens, width = x.shape[1:]
    size = width // layer.num_heads
    q, k, v = layer.qkv(x).chunk(3, -1)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1) & causal
    heads = []
    for head in range(layer.num_heads):
        own = slice(head * size, (head + 1) * size)
        scores = q[..., own] @ k[..., own].mT / size**0.5
        out = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[..., own]
        rows = slice(head, head + 1) if layer.headwise else own
        heads.append(out * torch.sigmoid(x @ layer.gate_proj.weight[rows].T))
    return layer.out_proj(torch.cat(heads, -1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", [GatedAttention, HeadwiseGatedAttention])
def test_it_is_the_formula_forward_and_backward(kind: type, backend: str, causal: bool) -> None:
    torch.manual_seed(0)
    layer = kind(32, 4).double()
    layer.backend = backend
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    check_formula(layer, by_hand, x, causal)
    through_maps, maps = layer.attend_through_maps(x, causal)
    torch.testing.assert_close(layer.out_proj(through_maps), by_hand(layer, x, causal))
    assert maps.second is None
    assert maps.first.shape == (2, 4, 9, 9)


def test_sizes_of_a_rival_are_those_of_its_name() -> None:
    with pytest.raises(InputError, match="the model CLIP decides that"):
        variant_config("CLIP", {"vision": {"registers": 4}})
