"""Attention maps of the class token by name, the correlation of two maps, and rollout against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import SIZES, TOKENS, random_images, tiny

from diffclip import CLIP
from diffclip.attention import AttentionMaps
from diffclip.config import variant_config
from diffclip.focus.maps import class_token_maps, correlation_by_layer, map_correlation, rollout
from diffclip.focus.recording import recording


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
    model, inputs = tiny("DiffCLIP"), random_images(5) if tower == "visual" else TOKENS.repeat(3, 1)[:5]
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
    assert correlation_by_layer(model, "visual", random_images(5)).shape == (5, layers)
    assert correlation_by_layer(model, "text", TOKENS).shape == (2, 0)


@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP"])
def test_rollout_is_the_product_of_averaged_maps(variant: str) -> None:
    model = tiny(variant)
    with recording(model, "visual") as seen:
        model.encode_image(random_images())
    found = rollout(seen)
    assert found.shape == (2, 17, 17)
    for sample in range(2):
        flow = torch.eye(17)
        for one in seen:
            mean = sum(one.combined[sample, head].abs() for head in range(one.combined.shape[1]))
            rows = [row / row.sum() for row in mean]
            flow = (0.5 * torch.stack(rows) + 0.5 * torch.eye(17)) @ flow
        torch.testing.assert_close(found[sample], flow)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 17))
    assert (found >= 0).all()
    if variant == "DiffCLIP":
        assert any((one.combined < 0).any() for one in seen)


def test_a_layer_that_mixes_nothing_keeps_what_there_was() -> None:
    maps = torch.full((1, 1, 2, 2), 0.5)
    nothing = AttentionMaps(maps, maps.clone(), torch.tensor(1.0))
    torch.testing.assert_close(rollout([nothing])[0], torch.eye(2))
    half = AttentionMaps(maps, None, None)
    torch.testing.assert_close(rollout([half, nothing])[0], torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
