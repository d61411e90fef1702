"""A second map added to plain attention: nothing changes at first, and it learns at once."""

from __future__ import annotations

import pytest
import torch
from tiny import SIZES, TOKENS, pictures

from diffclip import CLIP
from diffclip.attention import AddedDifferentialAttention
from diffclip.config import variant_config


def loss(model: CLIP, images: torch.Tensor) -> torch.Tensor:
    out = model(images, TOKENS)
    logits = out["logit_scale"] * out["image_features"] @ out["text_features"].T
    return torch.nn.functional.cross_entropy(logits, torch.arange(2))


def test_at_first_it_is_the_plain_model_and_lambda_is_exactly_zero() -> None:
    plain, added = (CLIP(variant_config(name, SIZES), seed=0) for name in ("CLIP", "DiffCLIP-added"))
    images = pictures()
    assert [lam.tolist() for lam in added.lambdas().values()] == [[0.0] * 3] * 2
    torch.testing.assert_close(added.encode_image(images), plain.encode_image(images))
    torch.testing.assert_close(added.encode_text(TOKENS), plain.encode_text(TOKENS))
    loss(added, images).backward()
    for layers in added.attention_layers().values():
        for layer in layers:
            assert layer.lambda_q1.grad.abs().max() > 0


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_formula_and_its_maps_make_its_output(causal: bool) -> None:
    torch.manual_seed(0)
    layer, x = AddedDifferentialAttention(32, 4).double(), torch.randn(2, 9, 32, dtype=torch.float64)
    q1, k1, v = layer.qkv(x).chunk(3, -1)
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1) & causal

    def attended(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        q, k, values = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in (q, k, v))
        return (q @ k.mT / 8**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ values

    lam = layer.current_lambda()
    assert lam.abs() > 1e-3  # outside a model its vectors are drawn freely
    heads = attended(q1, k1) - lam * attended(layer.q2_proj(x), layer.k2_proj(x))
    wanted = layer.out_proj(heads.transpose(1, 2).flatten(2))
    for backend in ("eager", "sdpa"):
        layer.backend = backend
        torch.testing.assert_close(layer(x, is_causal=causal), wanted)
    through, maps = layer.attend_through_maps(x, causal)
    torch.testing.assert_close(layer.out_proj(through), wanted)
    torch.testing.assert_close(maps.combined, maps.first - lam * maps.second)
