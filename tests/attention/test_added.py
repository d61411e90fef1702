"""A second map added to plain attention: nothing changes at first, and it learns at once."""

from __future__ import annotations

import pytest
import torch
from test_v2 import TINY

from diffclip import CLIP
from diffclip.attention import AddedDifferentialAttention
from diffclip.config import variant_config
from diffclip.focus import recording
from diffclip.published import infer_config

TOKENS = torch.tensor([[1, 5, 6, 49, 0, 0, 0, 0], [1, 7, 49, 0, 0, 0, 0, 0], [1, 8, 9, 10, 49, 0, 0, 0]])


def tiny(variant: str = "DiffCLIP-added") -> CLIP:
    return CLIP(variant_config(variant, TINY), seed=0)


def loss(model: CLIP, images: torch.Tensor) -> torch.Tensor:
    out = model(images, TOKENS)
    logits = out["logit_scale"] * out["image_features"] @ out["text_features"].T
    return torch.nn.functional.cross_entropy(logits, torch.arange(3))


def test_at_first_it_is_the_plain_model_and_lambda_is_exactly_zero() -> None:
    plain, added, images = tiny("CLIP"), tiny(), torch.randn(3, 3, 32, 32)
    assert [lam.tolist() for lam in added.lambdas().values()] == [[0.0, 0.0], [0.0, 0.0]]
    torch.testing.assert_close(added.encode_image(images), plain.encode_image(images))
    torch.testing.assert_close(added.encode_text(TOKENS), plain.encode_text(TOKENS))
    loss(added, images).backward()
    for layers in added.attention_layers().values():
        for layer in layers:
            assert layer.lambda_q1.grad.abs().max() > 0


def test_the_second_map_is_learnt_within_ten_steps() -> None:
    model, images = tiny(), torch.randn(3, 3, 32, 32)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for _ in range(10):
        optimiser.zero_grad()
        loss(model, images).backward()
        optimiser.step()
    for name, value in model.named_parameters():
        if name.endswith(("q2_proj.weight", "k2_proj.weight", "lambda_q1")):
            assert not torch.equal(value, before[name]), name
    assert all(lam.abs().min() > 0 for lam in model.lambdas().values())


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_formula_and_its_maps_make_its_output(causal: bool) -> None:
    torch.manual_seed(0)
    layer, x = AddedDifferentialAttention(32, 4).double(), torch.randn(2, 9, 32, dtype=torch.float64)
    q1, k1, v = layer.qkv(x).chunk(3, -1)
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1) & causal

    def attended(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        q, k, values = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in (q, k, v))
        return (q @ k.mT / 8**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ values

    lam = layer.current_lambda()
    assert lam.abs() > 1e-3  # outside a model its vectors are drawn freely
    heads = attended(q1, k1) - lam * attended(layer.q2_proj(x), layer.k2_proj(x))
    wanted = layer.out_proj(heads.transpose(1, 2).flatten(2))
    for backend in ("eager", "sdpa"):
        layer.backend = backend
        torch.testing.assert_close(layer(x, is_causal=causal), wanted)
    through, maps = layer.attend_through_maps(x, causal)
    torch.testing.assert_close(layer.out_proj(through), wanted)
    torch.testing.assert_close(maps.combined, maps.first - lam * maps.second)


def test_it_is_recognised_by_its_weights() -> None:
    config = infer_config(tiny().state_dict())
    assert (config.vision.attention, config.lambda_init, config.vision.heads) == (
        "differential-added",
        0.0,
        4,
    )


def test_recording_it_changes_nothing() -> None:
    model, images = tiny().eval(), torch.randn(2, 3, 32, 32)
    wanted = model.encode_image(images)
    with recording(model, "visual") as seen:
        torch.testing.assert_close(model.encode_image(images), wanted)
    assert seen[1].second is not None
