"""Recording changes neither outputs nor model; maps by name, their correlation, and rollout against a plain loop."""

import numpy as np
import pytest
import torch
from tiny import SIZES, TOKENS, directions, image_relevance, random_images, tiny

from diffclip import CLIP
from diffclip.attention.module import AttentionMaps
from diffclip.config import variant_config
from diffclip.maps.attention_maps import correlation_by_layer, map_correlation, rollout
from diffclip.maps.recording import recording
from diffclip.maps.relevance import text_relevance

VARIANTS = ("CLIP", "DiffCLIP", "DiffCLIP-v2", "DiffCLIP-added", "CLIP-gated-registers")


def leftovers(model: CLIP) -> list[object]:
    """List everything that recording could have left on the model."""
    layers = [layer for tower in model.attention_layers().values() for layer in tower]
    traces: list[object] = [layer for layer in layers if "_attend" in vars(layer)]
    return traces + [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("gradients", [False, True])
def test_recording_keeps_outputs_and_leaves_no_traces(variant: str, backend: str, gradients: bool) -> None:
    model, images = tiny(variant, backend), random_images()
    with torch.no_grad():
        wanted = model.encode_image(images), model.encode_text(TOKENS)
    with recording(model, "visual", gradients=gradients) as image_maps:
        image = model.encode_image(images)
    with recording(model, "text", 1, gradients=gradients) as text_maps:
        text = model.encode_text(TOKENS)
    torch.testing.assert_close(image, wanted[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(text, wanted[1], rtol=1e-5, atol=1e-5)
    assert image.requires_grad is gradients
    heads = 2 if variant == "DiffCLIP" else 4
    tokens = 16 + model.visual.num_prefix_tokens
    assert [maps.combined.shape for maps in image_maps] == [(2, heads, tokens, tokens)] * 3
    assert [maps.combined.shape for maps in text_maps] == [(2, heads, 8, 8)] * 2
    assert leftovers(model) == []


@pytest.mark.parametrize(("training", "grad"), [(False, True), (True, False)])
def test_recording_restores_all_modes_also_after_an_error(training: bool, grad: bool) -> None:
    model = tiny("DiffCLIP").train(training)
    model.visual.blocks[0].eval()
    model.set_grad_checkpointing(True)
    modes = [module.training for module in model.modules()]
    with torch.set_grad_enabled(grad):
        with recording(model, "visual", gradients=True) as layer_maps:
            assert not any(module.training for module in model.modules())
            model.encode_image(random_images())
            # with timm's checkpointing on, the maps would be computed twice
            torch.autograd.grad(layer_maps[-1].combined.sum(), [layer_maps[0].combined])
            assert len(layer_maps) == 3
        with pytest.raises(ValueError), recording(model, "visual", gradients=True):
            model.encode_image(random_images()[:, :1])
        assert torch.is_grad_enabled() is grad
    assert [module.training for module in model.modules()] == modes
    assert model.visual.grad_checkpointing
    assert model.transformer.grad_checkpointing
    assert leftovers(model) == []


@pytest.mark.parametrize("variant", ["CLIP-gated-registers", "DiffCLIP"])
def test_inference_mode_and_frozen_parameters_give_the_same_relevance(variant: str) -> None:
    model, images, texts = tiny(variant), random_images(), directions(3)
    wanted = image_relevance(model, images, texts), text_relevance(model, TOKENS, texts)
    model.requires_grad_(False)
    with torch.inference_mode():
        inputs = images * 1, texts * 1  # made in inference mode
        inferred = image_relevance(model, *inputs), text_relevance(model, TOKENS, inputs[1])
        assert torch.is_inference_mode_enabled()
    frozen = image_relevance(model, images, texts), text_relevance(model, TOKENS, texts)
    for expected, *relevances in zip(wanted, inferred, frozen, strict=True):
        for relevance in relevances:
            torch.testing.assert_close(expected, relevance)
            assert not relevance.requires_grad


@pytest.mark.parametrize("variant", ["CLIP-gated-registers", "DiffCLIP"])
def test_relevance_in_lower_precision_stays_close(variant: str) -> None:
    model, images, texts = tiny(variant), random_images(), directions(2)
    wanted = image_relevance(model, images, texts)
    with torch.autocast("cpu", torch.bfloat16):
        auto = image_relevance(model, images, texts)
        text_scores = text_relevance(model, TOKENS, texts)
    half = image_relevance(model.bfloat16(), images.bfloat16(), texts)
    for relevance in (auto, half):
        assert relevance.isfinite().all()
        # rounding of 2⁻⁸ changes values, but not which patches matter
        assert torch.corrcoef(torch.stack([wanted.flatten(), relevance.float().flatten()]))[0, 1] > 0.9
    assert text_scores.isfinite().all()
    assert text_scores.max() > 0


def test_correlation_of_equal_opposite_and_constant_maps() -> None:
    rising = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4]).expand(1, 1, 5, 5)  # a class token and 2 · 2 patches
    even = torch.full((1, 1, 5, 5), 0.2)
    lam = torch.tensor(0.8)
    assert map_correlation(AttentionMaps(rising, 2 * rising, lam)).item() == pytest.approx(1)
    assert map_correlation(AttentionMaps(rising, 1 - rising, lam)).item() == pytest.approx(-1)
    assert map_correlation(AttentionMaps(rising, even, lam)).item() == 0
    for tokens in (17, 197):  # constant but for rounding
        flat = torch.full((1, 1, tokens, tokens), 1 / tokens)
        assert map_correlation(AttentionMaps(flat, flat.clone(), lam)).item() == 0


@pytest.mark.parametrize("tower", ["visual", "text"])
def test_correlation_by_layer_is_the_mean_pearson_r_over_heads(tower: str) -> None:
    model, inputs = tiny("DiffCLIP"), random_images(5) if tower == "visual" else TOKENS.repeat(3, 1)[:5]
    correlations = correlation_by_layer(model, tower, inputs)
    assert (correlations.shape, correlations.dtype) == ((5, 3), torch.float64)
    with recording(model, tower) as layer_maps:
        model.encode_image(inputs) if tower == "visual" else model.encode_text(inputs)
    for layer, maps in enumerate(layer_maps):
        for sample in range(5):
            row = 0 if tower == "visual" else int(inputs[sample].argmax())
            part = slice(1, None) if tower == "visual" else slice(0, row + 1)
            pairs = zip(maps.first[sample, :, row, part], maps.second[sample, :, row, part], strict=True)
            mean = np.mean([np.corrcoef(first, second)[0, 1] for first, second in pairs])
            assert correlations[sample, layer].item() == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize(("variant", "layers"), [("CLIP", 0), ("CLIP-gated", 0), ("DiffCLIP-vision", 3)])
def test_correlation_by_layer_is_empty_for_towers_with_one_map(variant: str, layers: int) -> None:
    model = CLIP(variant_config(variant, SIZES), seed=0)
    assert correlation_by_layer(model, "visual", random_images(5)).shape == (5, layers)
    assert correlation_by_layer(model, "text", TOKENS).shape == (2, 0)


@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP"])
def test_rollout_is_the_product_of_averaged_maps(variant: str) -> None:
    model = tiny(variant)
    with recording(model, "visual") as layer_maps:
        model.encode_image(random_images())
    flows = rollout(layer_maps)
    assert flows.shape == (2, 17, 17)
    for sample in range(2):
        flow = torch.eye(17)
        for maps in layer_maps:
            mean = sum(maps.combined[sample, head].abs() for head in range(maps.combined.shape[1]))
            rows = [row / row.sum() for row in mean]
            flow = (0.5 * torch.stack(rows) + 0.5 * torch.eye(17)) @ flow
        torch.testing.assert_close(flows[sample], flow)
    torch.testing.assert_close(flows.sum(-1), torch.ones(2, 17))
    assert (flows >= 0).all()
    if variant == "DiffCLIP":
        assert any((maps.combined < 0).any() for maps in layer_maps)


def test_rollout_is_unchanged_by_a_layer_that_mixes_nothing() -> None:
    maps = torch.full((1, 1, 2, 2), 0.5)
    nothing = AttentionMaps(maps, maps.clone(), torch.tensor(1.0))
    torch.testing.assert_close(rollout([nothing])[0], torch.eye(2))
    half = AttentionMaps(maps, None, None)
    torch.testing.assert_close(rollout([half, nothing])[0], torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
