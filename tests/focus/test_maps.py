"""Attention maps: what they are made of, and that the model is left as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffclip import CLIP, InputError
from diffclip.attention import AttentionMaps
from diffclip.config import variant_config
from diffclip.focus import class_token_maps, map_correlation, named_maps, text_maps, vision_maps

TINY = {
    "embed_dim": 16,
    "vision": {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "heads": 4},
    "text": {"context_length": 8, "vocab_size": 50, "width": 32, "layers": 1, "heads": 2},
}


def tiny(variant: str) -> CLIP:
    return CLIP(variant_config(variant, TINY), seed=0).eval()


@pytest.mark.parametrize("layer", [0, -1])
def test_maps_reproduce_the_layers_output(layer: int) -> None:
    model, images = tiny("DiffCLIP"), torch.randn(2, 3, 32, 32)
    attention = model.attention_layers()["visual"][layer]
    seen = {}
    handle = attention.register_forward_hook(lambda _, args, out: seen.update(x=args[0], out=out))
    model.encode_image(images)
    handle.remove()
    maps = vision_maps(model, images, layer)
    assert maps.first.shape == (2, 2, 17, 17)
    v = attention.qkv(seen["x"]).chunk(3, dim=-1)[2].unflatten(-1, (2, 16)).transpose(1, 2)
    heads = torch.nn.functional.rms_norm(maps.combined @ v, (16,), attention.diff_norm.weight, 1e-5)
    heads = heads * (1 - attention.lambda_init)
    torch.testing.assert_close(
        attention.out_proj(heads.transpose(1, 2).flatten(2)), seen["out"], rtol=1e-4, atol=1e-5
    )


def test_class_token_maps_by_kind_of_layer() -> None:
    images = torch.randn(3, 3, 32, 32)
    plain = class_token_maps(tiny("CLIP"), images)
    assert list(plain) == ["A"]
    assert plain["A"].shape == (3, 4, 4)
    assert (plain["A"] >= 0).all()
    model = tiny("DiffCLIP")
    maps = class_token_maps(model, images)
    assert list(maps) == ["A1", "A2", "A1 − λ·A2"]
    lam = model.lambdas()["visual"][-1]
    torch.testing.assert_close(maps["A1 − λ·A2"], maps["A1"] - lam * maps["A2"])


def test_no_hook_is_left_behind_and_a_wrong_layer_is_named() -> None:
    model = tiny("DiffCLIP")
    class_token_maps(model, torch.randn(1, 3, 32, 32))
    with pytest.raises(InputError, match="there is no layer 2"):
        vision_maps(model, torch.randn(1, 3, 32, 32), layer=2)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("training", [False, True])
def test_the_maps_are_those_of_evaluation_whatever_the_mode(training: bool) -> None:
    sizes = TINY | {"vision": TINY["vision"] | {"patch_dropout": 0.5, "drop_path": 0.5}}
    model, images = CLIP(variant_config("DiffCLIP", sizes), seed=0), torch.randn(2, 3, 32, 32)
    wanted = class_token_maps(tiny("DiffCLIP"), images)
    maps = class_token_maps(model.train(training), images)
    for name, values in wanted.items():
        torch.testing.assert_close(maps[name], values)
    with pytest.raises(InputError):
        vision_maps(model, images[:, :1])
    assert {module.training for module in model.modules()} == {training}


@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP"])
def test_maps_of_texts_are_causal_rows_of_shares(variant: str) -> None:
    tokens = torch.randint(1, 49, (3, 8))
    maps = text_maps(tiny(variant), tokens)
    for one in (maps.first, maps.second):
        if one is None:
            assert variant == "CLIP"
            continue
        torch.testing.assert_close(one.sum(-1), torch.ones_like(one[..., 0]))
        assert (one.triu(1) == 0).all()


def test_layers_are_counted_from_either_end() -> None:
    model, images = tiny("DiffCLIP"), torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(vision_maps(model, images, 0).first, vision_maps(model, images, -2).first)
    assert not torch.allclose(vision_maps(model, images, 0).first, vision_maps(model, images, 1).first)


def test_correlation_of_the_two_maps_is_pearsons() -> None:
    maps = vision_maps(tiny("DiffCLIP"), torch.randn(3, 3, 32, 32))
    assert maps.second is not None
    found = map_correlation(maps)
    assert found.shape == (3, 2)
    for picture in range(3):
        for head in range(2):
            rows = [one[picture, head, 0, 1:].numpy() for one in (maps.first, maps.second)]
            assert found[picture, head].item() == pytest.approx(np.corrcoef(*rows)[0, 1], abs=1e-4)


def test_correlation_of_equal_opposite_and_constant_maps() -> None:
    rising = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4]).expand(1, 1, 5, 5)  # a class token and 2 · 2 patches
    even = torch.full((1, 1, 5, 5), 0.2)
    lam = torch.tensor(0.8)
    assert map_correlation(AttentionMaps(rising, 2 * rising, lam)).item() == pytest.approx(1)
    assert map_correlation(AttentionMaps(rising, 1 - rising, lam)).item() == pytest.approx(-1)
    assert map_correlation(AttentionMaps(rising, even, lam)).item() == 0
    with pytest.raises(ValueError, match="one map"):
        map_correlation(AttentionMaps(rising, None, None))


def test_recording_and_names_agree() -> None:
    model, images = tiny("DiffCLIP"), torch.randn(1, 3, 32, 32)
    names = named_maps(vision_maps(model, images))
    assert list(names) == ["A1", "A2", "A1 − λ·A2"]
    lam = model.lambdas()["visual"][-1]
    torch.testing.assert_close(names["A1 − λ·A2"].sum(-1), (1 - lam).expand(1, 2, 17))


@pytest.mark.parametrize("tokens", [17, 26, 101, 197])
def test_maps_that_are_constant_but_for_rounding_have_no_correlation(tokens: int) -> None:
    even = torch.full((1, 1, tokens, tokens), 1 / tokens)
    assert map_correlation(AttentionMaps(even, even.clone(), torch.tensor(0.5))).item() == 0
