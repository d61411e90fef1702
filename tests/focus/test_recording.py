"""Recording: the same outputs, and a model that is left as it was whatever happens."""

from __future__ import annotations

import pytest
import torch
from tiny import TOKENS, directions, image_relevance, random_images, tiny

from diffclip import CLIP, InputError
from diffclip.focus.recording import recording
from diffclip.focus.relevance import text_relevance

VARIANTS = ("CLIP", "DiffCLIP", "DiffCLIP-v2", "DiffCLIP-added", "CLIP-gated-registers")


def leftovers(model: CLIP) -> list[object]:
    """Whatever recording could have left on the layers."""
    layers = [layer for tower in model.attention_layers().values() for layer in tower]
    found: list[object] = [
        name for layer in layers for name in vars(layer) if name.startswith(("_attend", "attend"))
    ]
    for module in model.modules():
        found += [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        found += [*module._backward_hooks.values(), *module._backward_pre_hooks.values()]
    found += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return found


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("gradients", [False, True])
def test_outputs_are_the_normal_ones(variant: str, backend: str, gradients: bool) -> None:
    model, images = tiny(variant, backend), random_images()
    with torch.no_grad():
        wanted = model.encode_image(images), model.encode_text(TOKENS)
    with recording(model, "visual", gradients=gradients) as seen:
        image = model.encode_image(images)
    with recording(model, "text", 1, gradients=gradients) as spoken:
        text = model.encode_text(TOKENS)
    torch.testing.assert_close(image, wanted[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(text, wanted[1], rtol=1e-5, atol=1e-5)
    assert image.requires_grad is gradients
    heads = 2 if variant == "DiffCLIP" else 4
    tokens = 16 + model.visual.num_prefix_tokens
    assert [one.combined.shape for one in seen] == [(2, heads, tokens, tokens)] * 3
    assert [one.combined.shape for one in spoken] == [(2, heads, 8, 8)] * 2
    assert leftovers(model) == []


@pytest.mark.parametrize(("training", "grad"), [(False, True), (True, False)])
def test_modes_are_restored_whatever_happens_inside(training: bool, grad: bool) -> None:
    model = tiny("DiffCLIP").train(training)
    model.visual.blocks[0].eval()
    model.set_grad_checkpointing(True)
    modes = [module.training for module in model.modules()]
    with torch.set_grad_enabled(grad):
        with recording(model, "visual", gradients=True) as seen:
            assert not any(module.training for module in model.modules())
            model.encode_image(random_images())
            # timm's checkpointing would have gone through the maps twice
            torch.autograd.grad(seen[-1].combined.sum(), [seen[0].combined])
            assert len(seen) == 3
        with pytest.raises(InputError), recording(model, "visual", gradients=True):
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
        inside = images * 1, texts * 1  # made in inference mode
        found = image_relevance(model, *inside), text_relevance(model, TOKENS, inside[1])
        assert torch.is_inference_mode_enabled()
    frozen = image_relevance(model, images, texts), text_relevance(model, TOKENS, texts)
    for one, *others in zip(wanted, found, frozen, strict=True):
        for other in others:
            torch.testing.assert_close(one, other)
            assert not other.requires_grad


@pytest.mark.parametrize("variant", ["CLIP-gated-registers", "DiffCLIP"])
def test_lower_precision_comes_near(variant: str) -> None:
    model, images, texts = tiny(variant), random_images(), directions(2)
    wanted = image_relevance(model, images, texts)
    with torch.autocast("cpu", torch.bfloat16):
        auto = image_relevance(model, images, texts)
        spoken = text_relevance(model, TOKENS, texts)
    half = image_relevance(model.bfloat16(), images.bfloat16(), texts)
    for found in (auto, half):
        assert found.isfinite().all()
        # rounding of 2⁻⁸ is felt, but which patches matter is not lost
        assert torch.corrcoef(torch.stack([wanted.flatten(), found.float().flatten()]))[0, 1] > 0.9
    assert spoken.isfinite().all()
    assert spoken.max() > 0


def test_wrong_towers_and_layers_are_named() -> None:
    model = tiny("CLIP")
    with pytest.raises(InputError, match="did you mean 'visual'"), recording(model, "vision"):
        pass
    no_layer = pytest.raises(InputError, match="text tower has 3 layers: there is no layer -4")
    with no_layer, recording(model, "text", -4):
        pass
    assert leftovers(model) == []
