"""Features of patches: which tokens they are, and the last layer's values by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tiny import SIZES

from diffclip import CLIP, InputError
from diffclip.attention import ATTENTION_LAYERS
from diffclip.config import variant_config

TINY = SIZES | {"vision": SIZES["vision"] | {"image_size": 24}}
IMAGES = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))


def tiny(variant: str, **vision: object) -> CLIP:
    return CLIP(variant_config(variant, TINY | {"vision": TINY["vision"] | vision}), seed=0).eval()


@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP", "DiffCLIP-v2", "CLIP-gated-registers"])
def test_patches_go_where_the_class_token_goes(variant: str) -> None:
    model = tiny(variant)
    tokens = model.visual.forward_features(IMAGES) @ model.image_projection
    torch.testing.assert_close(tokens[:, 0], model.encode_image(IMAGES))
    patches = model.encode_patches(IMAGES)
    torch.testing.assert_close(patches, tokens[:, -9:])  # row by row, without class token and registers
    torch.testing.assert_close(model.encode_patches(IMAGES, normalize=True), F.normalize(patches, dim=-1))


def test_last_values_of_a_plain_model_by_hand() -> None:
    model = tiny("CLIP", layers=2)
    tower = model.visual
    x = tower.patch_embed.proj(IMAGES).flatten(2).mT + tower.pos_embed[:, 1:]
    x = torch.cat([(tower.cls_token + tower.pos_embed[:, :1]).expand(2, -1, -1), x], 1)
    first, last = tower.blocks
    x = last.norm1(first(x)[:, 1:])
    values = x @ last.attn.qkv.weight[64:].T + last.attn.qkv.bias[64:]
    wanted = (
        tower.norm(values @ last.attn.out_proj.weight.T + last.attn.out_proj.bias) @ model.image_projection
    )
    torch.testing.assert_close(model.encode_patches(IMAGES, readout="last-values"), wanted)


@pytest.mark.parametrize("kind", ATTENTION_LAYERS)
def test_own_values_are_what_a_lone_token_attends_to(kind: str) -> None:
    """A map over one token is 1; A1 − λ·A2 is 1 − λ, which the head norm removes."""
    torch.manual_seed(0)
    layer = ATTENTION_LAYERS[kind](32, 4).double()
    if kind == "differential":
        layer.diff_norm.weight.data.uniform_(0.5, 2)
        layer.qkv.weight.data *= 100  # the norm's epsilon does not matter
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    alone = layer._attend(x.flatten(0, 1)[:, None], False).view(2, 9, 32)
    if kind == "differential-added":
        alone = alone / (1 - layer.current_lambda())
    if kind == "differential-v2":
        alone = alone / (1 - layer.token_lambdas(x)).mT.repeat_interleave(8, -1)
    torch.testing.assert_close(layer.own_values(x), alone, rtol=1e-5, atol=1e-5)


def test_every_patch_is_there_in_training_and_has_a_gradient() -> None:
    model = tiny("DiffCLIP", patch_dropout=0.5).train()
    for readout in ("attention", "last-values"):
        features = model.encode_patches(IMAGES, readout=readout)
        assert features.shape == (2, 9, 16)
        (gradient,) = torch.autograd.grad(features.square().sum(), [model.visual.patch_embed.proj.weight])
        assert gradient.abs().sum() > 0


def test_what_it_does_not_take() -> None:
    with pytest.raises(InputError, match="did you mean 'last-values'"):
        tiny("CLIP").encode_patches(IMAGES, readout="values")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"takes \[B, 3, 24, 24\]"):
        tiny("CLIP").encode_patches(IMAGES[..., :16])
