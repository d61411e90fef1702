"""The correlation of a layer's two maps by layer: against NumPy on the rows that count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import SIZES, TOKENS, pictures, tiny

from diffclip import CLIP
from diffclip.config import variant_config
from diffclip.focus import correlation_by_layer, recording


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


@pytest.mark.parametrize("variant", ["CLIP", "CLIP-gated"])
def test_a_tower_with_one_map_has_no_layers(variant: str) -> None:
    model = CLIP(variant_config(variant, SIZES), seed=0)
    assert correlation_by_layer(model, "visual", pictures(5)).shape == (5, 0)
    assert correlation_by_layer(model, "text", TOKENS).shape == (2, 0)
    model = tiny("DiffCLIP-vision")
    assert correlation_by_layer(model, "visual", pictures(5)).shape == (5, 3)
    assert correlation_by_layer(model, "text", TOKENS).shape == (2, 0)
