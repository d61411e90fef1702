"""The correlation of a layer's two maps: against NumPy on the rows that count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradients import made_batch, made_model

from diffclip.config import variant_config
from diffclip.focus import recording
from diffclip.model import CLIP
from diffclip.training.validation import image_correlations, text_correlations

ENDS = [11, 4, 2, 7, 1]
VISION_ONLY = {
    "embed_dim": 16,
    "vision": {"image_size": 32, "patch_size": 16, "width": 32, "layers": 2, "heads": 4},
    "text": {"context_length": 12, "vocab_size": 50, "width": 32, "layers": 3, "heads": 4},
}


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Five images and texts, of which each ends in its own place."""
    images, tokens = (part[:5].clone() for part in made_batch())
    for row, end in zip(tokens, ENDS, strict=True):
        row[end:] = 0
        row[end] = 49
    return images, tokens


def test_each_layer_is_the_mean_over_heads_of_pearsons_r_in_the_rows_that_count() -> None:
    model, (images, tokens) = made_model(), inputs()
    for tower, given, encode, found in (
        ("visual", images, model.encode_image, image_correlations(model, images)),
        ("text", tokens, model.encode_text, text_correlations(model, tokens)),
    ):
        assert (found.shape, found.dtype) == ((5, 2), torch.float64)
        with recording(model, tower) as seen:
            encode(given)
        for layer, maps in enumerate(seen):
            for one in range(5):
                row = 0 if tower == "visual" else ENDS[one]
                part = slice(1, None) if tower == "visual" else slice(0, ENDS[one] + 1)
                pairs = zip(maps.first[one, :, row, part], maps.second[one, :, row, part], strict=True)
                mean = np.mean([np.corrcoef(first, second)[0, 1] for first, second in pairs])
                assert found[one, layer].item() == pytest.approx(mean, abs=1e-5)


def test_a_plain_tower_has_no_layers() -> None:
    images, tokens = inputs()
    model = CLIP(variant_config("DiffCLIP-vision", VISION_ONLY), seed=0)
    assert image_correlations(model, images).shape == (5, 2)
    assert text_correlations(model, tokens).shape == (5, 0)
