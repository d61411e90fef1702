"""Attention maps of the class token by name, and the correlation of two maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import SIZES, TOKENS, pictures, tiny

from diffclip import CLIP
from diffclip.attention import AttentionMaps
from diffclip.config import variant_config
from diffclip.focus import class_token_maps, correlation_by_layer, map_correlation, recording


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


def test_correlation_of_equal_opposite_and_constant_maps() -> None:
    rising = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4]).expand(1, 1, 5, 5)  # a class token and 2 · 2 patches
    even = torch.full((1, 1, 5, 5), 0.2)
    lam = torch.tensor(0.8)
    assert map_correlation(AttentionMaps(rising, 2 * rising, lam)).item() == pytest.approx(1)
    assert map_correlation(AttentionMaps(rising, 1 - rising, lam)).item() == pytest.approx(-1)
    assert map_correlation(AttentionMaps(rising, even, lam)).item() == 0
    with pytest.raises(ValueError, match="one map"):
        map_correlation(AttentionMaps(rising, None, None))


@pytest.mark.parametrize("tokens", [17, 197])
def test_maps_that_are_constant_but_for_rounding_have_no_correlation(tokens: int) -> None:
    even = torch.full((1, 1, tokens, tokens), 1 / tokens)
    assert map_correlation(AttentionMaps(even, even.clone(), torch.tensor(0.5))).item() == 0


@pytest.mark.parametrize("tower", ["visual", "text"])
def test_each_layer_is_the_mean_over_heads_of_pearsons_r_in_the_rows_that_count(tower: str) -> None:
    model, inputs = tiny("DiffCLIP"), pictures(5) if tower == "visual" else TOKENS.repeat(3, 1)[:5]
    found = correlation_by_layer(model, tower, inputs)
    assert (found.shape, found.dtype) == ((5, 3), torch.float64)
    with recording(model, tower) as seen:
        model.encode_image(inputs) if tower == "visual" else model.encode_text(inputs)
    for layer, maps in enumerate(seen):
        for one in range(5):
            row = 0 if tower == "visual" else int(inputs[one].argmax())
            part = slice(1, None) if tower == "visual" else slice(0, row + 1)
            pairs = zip(maps.first[one, :, row, part], maps.second[one, :, row, part], strict=True)
            mean = np.mean([np.corrcoef(first, second)[0, 1] for first, second in pairs])
            assert found[one, layer].item() == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize(("variant", "layers"), [("CLIP", 0), ("CLIP-gated", 0), ("DiffCLIP-vision", 3)])
def test_a_tower_with_one_map_has_no_layers(variant: str, layers: int) -> None:
    model = CLIP(variant_config(variant, SIZES), seed=0)
    assert correlation_by_layer(model, "visual", pictures(5)).shape == (5, layers)
    assert correlation_by_layer(model, "text", TOKENS).shape == (2, 0)
