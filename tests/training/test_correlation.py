"""How alike two maps are: against NumPy on the rows that count, and nothing of the model or of chance is touched."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gradients import made_batch, made_model

from diffclip.attention import AttentionMaps
from diffclip.config import variant_config
from diffclip.focus import recording
from diffclip.model import CLIP
from diffclip.training.correlation import (
    image_correlations,
    mean_of_first,
    text_correlations,
    text_map_correlation,
)

ENDS = [11, 4, 2, 7, 1]
VISION_ONLY = {
    "embed_dim": 16,
    "vision": {"image_size": 32, "patch_size": 16, "width": 32, "layers": 2, "heads": 4},
    "text": {"context_length": 12, "vocab_size": 50, "width": 32, "layers": 3, "heads": 4},
}


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Five pictures and texts, of which each ends in its own place."""
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


def test_a_row_of_text_by_hand() -> None:
    first, second = torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4)
    # what stands after the end is not seen, and must not count
    first[0, 0, 2], second[0, 0, 2] = torch.tensor([0.2, 0.3, 0.5, 9.0]), torch.tensor([0.5, 0.3, 0.2, 9.0])
    first[1, 0, 3], second[1, 0, 3] = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.full((4,), 0.25)
    found = text_map_correlation(AttentionMaps(first, second, torch.tensor(0.8)), torch.tensor([2, 3]))
    assert found.flatten().tolist() == pytest.approx([-13 / 14, 0])
    with pytest.raises(ValueError, match="one map"):
        text_map_correlation(AttentionMaps(first, None, None), torch.tensor([2, 3]))


def test_a_plain_tower_has_no_layers() -> None:
    images, tokens = inputs()
    model = CLIP(variant_config("DiffCLIP-vision", VISION_ONLY), seed=0)
    assert image_correlations(model, images).shape == (5, 2)
    assert text_correlations(model, tokens).shape == (5, 0)
    assert mean_of_first([0, 1, 2, 3, 4], text_correlations(model, tokens), 3) == []


def test_the_model_and_chance_are_left_as_they_were() -> None:
    model, (images, tokens) = made_model(drop_path=0.5), inputs()
    model.train()
    before, state = torch.get_rng_state(), {name: one.clone() for name, one in model.state_dict().items()}
    first = image_correlations(model, images), text_correlations(model, tokens)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    again = image_correlations(model, images), text_correlations(model, tokens)
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))


def test_the_first_inputs_in_whatever_order_they_come() -> None:
    values = torch.rand(6, 3, dtype=torch.float64)
    places = [4, 0, 5, 1, 3, 2]
    by_place = values[[1, 3, 5, 4, 0, 2]]
    assert mean_of_first(places, values, 4) == by_place[:4].mean(0).tolist()
    assert mean_of_first(places, values, 100) == by_place.mean(0).tolist()


@pytest.mark.slow
def test_a_compiled_model_has_the_same_correlations() -> None:
    model, (images, tokens) = made_model(), inputs()
    plain = image_correlations(model, images), text_correlations(model, tokens)
    for block in (*model.visual.blocks, *model.transformer.resblocks):
        block.compile()
    model.eval()
    with torch.no_grad():
        model.encode_image(images), model.encode_text(tokens)
    found = image_correlations(model, images), text_correlations(model, tokens)
    for one, other in zip(found, plain, strict=True):
        assert torch.equal(one, other)
        assert not math.isnan(one.sum().item())
