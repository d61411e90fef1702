"""The other kinds of layers: each is its formula in every backend, and an added map changes nothing at first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import SIZES, TOKENS, random_images
from torch import Tensor

from diffclip import CLIP, InputError
from diffclip.attention import (
    AddedDifferentialAttention,
    DifferentialAttentionV2,
    GatedAttention,
    HeadwiseGatedAttention,
)
from diffclip.config import variant_config


def by_hand(layer: Any, x: Tensor, causal: bool) -> Tensor:
    """Head by head and map by map."""
    tokens, width = x.shape[1:]
    size = width // layer.num_heads
    q, k, v = layer.qkv(x).chunk(3, -1)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1) & causal

    def attended(q: Tensor, k: Tensor, own: slice) -> Tensor:
        scores = q[..., own] @ k[..., own].mT / size**0.5
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[..., own]

    heads = []
    for head in range(layer.num_heads):
        own = slice(head * size, (head + 1) * size)
        out = attended(q, k, own)
        if isinstance(layer, GatedAttention):
            rows = slice(head, head + 1) if layer.headwise else own
            out = out * torch.sigmoid(x @ layer.gate_proj.weight[rows].T)
        elif isinstance(layer, DifferentialAttentionV2):
            lam = torch.sigmoid(x @ layer.lambda_proj.weight[head])[..., None]
            out = out - lam * attended(layer.q2_proj(x), k, own)
        else:
            out = out - layer.current_lambda() * attended(layer.q2_proj(x), layer.k2_proj(x), own)
        heads.append(out)
    return layer.out_proj(torch.cat(heads, -1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("backend", "tokens"), [("eager", 9), ("sdpa", 9), ("sdpa", 150)])
@pytest.mark.parametrize(
    "kind",
    [AddedDifferentialAttention, DifferentialAttentionV2, GatedAttention, HeadwiseGatedAttention],
)
def test_it_is_the_formula_forward_and_backward(kind: type, backend: str, tokens: int, causal: bool) -> None:
    torch.manual_seed(0)
    layer = kind(24, 3).double()  # an odd number of heads is fine: no pair shares a value
    layer.backend = backend
    for name, vector in layer.named_parameters():
        if name.startswith("lambda_"):  # an added map starts with λ at 0
            vector.data.normal_()
    x = torch.randn(2, tokens, 24, dtype=torch.float64, requires_grad=True)
    out, wanted = layer(x, is_causal=causal), by_hand(layer, x, causal)
    torch.testing.assert_close(out, wanted)
    toward, inputs = torch.randn_like(out), [x, *layer.parameters()]
    found, expected = (torch.autograd.grad((y * toward).sum(), inputs) for y in (out, wanted))
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want)
    through, maps = layer.attend_through_maps(x, causal)
    torch.testing.assert_close(layer.out_proj(through), wanted)
    assert (maps.second is None) == isinstance(layer, GatedAttention)


def test_with_an_added_map_it_is_the_plain_model_at_first_and_learns_at_once() -> None:
    plain, added = (CLIP(variant_config(name, SIZES), seed=0) for name in ("CLIP", "DiffCLIP-added"))
    images = random_images()
    assert [lam.tolist() for lam in added.lambdas().values()] == [[0.0] * 3] * 2
    assert AddedDifferentialAttention(24, 3).current_lambda() == 0  # in a tower of one's own too
    torch.testing.assert_close(added.encode_image(images), plain.encode_image(images))
    torch.testing.assert_close(added.encode_text(TOKENS), plain.encode_text(TOKENS))
    out = added(images, TOKENS)
    logits = out["logit_scale"] * out["image_features"] @ out["text_features"].T
    torch.nn.functional.cross_entropy(logits, torch.arange(2)).backward()
    for layers in added.attention_layers().values():
        for layer in layers:
            assert layer.lambda_q1.grad.abs().max() > 0


def test_sizes_of_a_rival_are_those_of_its_name() -> None:
    with pytest.raises(InputError, match="the model CLIP decides that"):
        variant_config("CLIP", {"vision": {"registers": 4}})
