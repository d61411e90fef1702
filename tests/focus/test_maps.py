"""Attention maps of the class token by name, and the correlation of two maps."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny

from diffclip.attention import AttentionMaps
from diffclip.focus import class_token_maps, map_correlation


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


@pytest.mark.parametrize("tokens", [17, 26, 101, 197])
def test_maps_that_are_constant_but_for_rounding_have_no_correlation(tokens: int) -> None:
    even = torch.full((1, 1, tokens, tokens), 1 / tokens)
    assert map_correlation(AttentionMaps(even, even.clone(), torch.tensor(0.5))).item() == 0
