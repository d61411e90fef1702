"""Grad-ECLIP against the paper's formula, with values and channel weights written out."""

from __future__ import annotations

import pytest
import torch
from tiny import directions, image_relevance, random_images, tiny
from torch import Tensor
from torch.nn.functional import cosine_similarity

from diffclip import CLIP
from diffclip.attention import eager
from diffclip.focus.relevance import image_relevances


def last_layer(model: CLIP, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys [B, heads, N, d] and values [B, H, N, e] of the last layer."""
    layer, seen = model.attention_layers()["visual"][-1], []
    handle = layer.qkv.register_forward_hook(lambda _, __, out: seen.append(out.detach()))
    model.encode_image(images)
    handle.remove()
    q, k, v = seen[0].chunk(3, dim=-1)
    heads = (4, 4, 4 if model.config.vision.attention == "softmax" else 2)
    return tuple(x.unflatten(-1, (n, -1)).transpose(1, 2) for x, n in zip((q, k, v), heads, strict=True))


def literal(model: CLIP, images: Tensor, text: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """ReLU(Σ_c w_c·λ_i·v_ic), [B, patches], w the derivative of the cosine for the class token's output, the head
    norm's denominator held constant."""
    layer = model.attention_layers()["visual"][-1]
    q, k, v = last_layer(model, images)
    maps = eager.softmax_maps(q, k, False)
    plain = model.config.vision.attention == "softmax"
    lam = torch.tensor(0.0) if plain else layer.current_lambda().detach()
    combined = maps if plain else maps[:, 0::2] - lam * maps[:, 1::2]
    heads = (combined @ v).detach().requires_grad_()

    def attend(x: Tensor, causal: bool) -> Tensor:
        out = heads
        if not plain:
            root = (heads.detach().square().mean(-1, keepdim=True) + 1e-5).sqrt()
            out = heads / root * layer.diff_norm.weight * layer.out_scale
        return out.transpose(1, 2).flatten(2)

    with monkeypatch.context() as patch:
        patch.setattr(layer, "_attend", attend)
        cosine = model.encode_image(images, normalize=True) @ text
    (grad,) = torch.autograd.grad(cosine.sum(), [heads])
    channels = (grad[:, :, :1] * v).sum((1, 3))[:, 1:]

    def similarity(first: int, step: int = 2) -> Tensor:
        query, keys = q[:, first::step, 0].flatten(1), k[:, first::step].transpose(1, 2).flatten(2)
        return cosine_similarity(query[:, None], keys, dim=-1)[:, 1:]

    found = similarity(0, 1) if plain else similarity(0) - lam * similarity(1)
    low, high = found.amin(-1, keepdim=True), found.amax(-1, keepdim=True)
    return ((found - low) / (high - low) * channels).clamp_min(0)


@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP"])
def test_it_is_the_papers_formula(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, texts = tiny(variant), random_images(), directions(2)
    found = image_relevance(model, images, texts, method="grad-eclip").flatten(2)
    assert (found >= 0).all()
    assert (found > 0).any()
    for text in range(2):
        wanted = model.logit_scale.exp() * literal(model, images, texts[text], monkeypatch)
        torch.testing.assert_close(found[:, text], wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("variant", ["DiffCLIP-v2", "CLIP-gated-registers"])
def test_both_methods_of_every_kind_of_layer_at_once(variant: str) -> None:
    model, images, texts = tiny(variant), random_images(), directions(3)
    both = image_relevances(model, images, texts, 0)
    for method, maps in both.items():
        assert maps.shape == (2, 3, 4, 4)
        assert maps.isfinite().all()
        assert maps.amax() > 0
        alone = image_relevance(model, images, texts, 0, method=method)
        torch.testing.assert_close(maps, alone, rtol=1e-4, atol=1e-7)
