"""Rollout against a plain loop."""

from __future__ import annotations

import pytest
import torch
from tiny import pictures, tiny

from diffclip.attention import AttentionMaps
from diffclip.focus import recording, rollout


@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP"])
def test_rollout_is_the_product_of_averaged_maps(variant: str) -> None:
    model = tiny(variant)
    with recording(model, "visual") as seen:
        model.encode_image(pictures())
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
