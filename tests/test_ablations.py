"""Variants, rivals and ablations: their parts, names, recipes, saved folders and other layouts."""

import itertools
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny import SIZES, TOKENS, random_images
from torch import Tensor

import diffclip
from diffclip import CLIP, InputError
from diffclip.attention import ATTENTION_LAYERS
from diffclip.attention.differential import DifferentialAttention
from diffclip.attention.one_map import FirstMapAttention
from diffclip.config import (
    VARIANTS,
    parse_config,
    variant_config,
    variant_of,
)
from diffclip.integrations import timm, transformers
from diffclip.published import infer_config
from diffclip.report.labels import variant_in_name
from diffclip.training.recipe import model_fields, parse_recipe
from diffclip.weights import save_published


def tiny(name: str, seed: int = 0) -> CLIP:
    return CLIP(variant_config(name, SIZES), seed=seed).eval()


def outputs(model: CLIP) -> tuple[Tensor, Tensor]:
    return model.encode_image(random_images()), model.encode_text(TOKENS)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_has_the_parts_of_its_entry_and_is_found_by_them(name: str, tmp_path: Path) -> None:
    entry, model = VARIANTS[name], tiny(name)
    for tower, kind in zip(model.attention_layers().values(), (entry.vision, entry.text), strict=True):
        for layer in tower:
            assert type(layer) is ATTENTION_LAYERS[kind]
            if "factor" in layer.options and entry.lambda_init != "dynamic":
                assert (layer.head_norm, layer.factor) == (entry.head_norm, entry.factor)
                assert layer.out_scale == pytest.approx(1 - entry.lambda_init if layer.factor else 1.0)
    config = variant_config(name, SIZES)
    assert diffclip.config.name_of(config) == f"{name}-v32x3x4p8-t32x3x4"
    for label in (name, f"{name}-v32x3x4p8-t32x3x4"):
        assert variant_in_name(label) == variant_of(config) == name
    assert model_fields(config, "w")["model"] == name
    diffclip.save_weights(model, tmp_path)
    again, _, _ = diffclip.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(outputs(again), outputs(model), strict=True))


def test_no_two_variants_are_the_same_model() -> None:
    features = {name: outputs(tiny(name))[0] for name in VARIANTS if name != "DiffCLIP-text"}
    for first, second in itertools.combinations(features, 2):
        assert not torch.equal(features[first], features[second]) or "vision" in first + second, (
            first,
            second,
        )


def test_lambda0_computes_the_first_map_of_the_whole_layer_alone() -> None:
    whole, first = DifferentialAttention(24, 4), FirstMapAttention(24, 4)
    first.load_state_dict(
        {name: value for name, value in whole.state_dict().items() if name in first.state_dict()},
        strict=False,
    )
    q, k, v = whole.qkv.weight.detach().unflatten(0, (3, 4, 6))
    first.part_qkv.weight.data = torch.cat([q[::2], k[::2], v]).flatten(0, 1)
    q, k, v = whole.qkv.bias.detach().unflatten(0, (3, 4, 6))
    first.part_qkv.bias.data = torch.cat([q[::2], k[::2], v]).flatten(0, 1)
    x = torch.randn(2, 9, 24)
    whole.current_lambda = lambda: torch.zeros(())  # type: ignore[method-assign]
    torch.testing.assert_close(first(x), whole(x))


def test_an_open_gate_starts_at_the_sigmoid_of_1() -> None:
    layer = tiny("CLIP-gated-open").attention_layers()["text"][0]
    gates = torch.sigmoid(layer.gate_proj(torch.zeros(1, 32)))
    torch.testing.assert_close(gates, torch.full((1, 32), 0.7311), atol=1e-4, rtol=0)


def test_invalid_model_settings_are_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="did you mean 'DiffCLIP-no-norm'"):
        variant_config("DiffCLIP-nonorm", SIZES)
    with pytest.raises(InputError, match="architecture has differential: the model DiffCLIP decides that"):
        variant_config("DiffCLIP", SIZES | {"differential": {"factor": False}})
    with pytest.raises(
        InputError, match="differential is set, and no tower has an attention that it changes"
    ) as error:
        parse_config(SIZES | {"differential": {"factor": False}}, "c")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"preprocess\.resize 8 is smaller than the image size"):
        variant_config("CLIP", SIZES | {"preprocess": {"resize": 8}})
    with pytest.raises(InputError, match=r"vision\.image_size: \d+ is above 8192"):
        parse_config(SIZES | {"vision": SIZES["vision"] | {"image_size": 80_000}}, "c")
    mix = variant_config("DiffCLIP", SIZES)
    mix.differential.head_norm, mix.lambda_init = False, 0.5
    assert variant_of(mix) == "custom"
    with pytest.raises(InputError, match=r"λ_init 0\.5, head_norm False: a recipe cannot"):
        model_fields(mix, "w")


def test_a_recipe_accepts_an_ablation_like_a_variant() -> None:
    fields = {"model": "DiffCLIP-no-norm", "epochs": 1, "batch_size": 2, "data": {"train": "x"}}
    recipe = parse_recipe(fields | {"architecture": SIZES}, "t")
    assert variant_of(recipe.config()) == "DiffCLIP-no-norm"
    assert recipe.model_copy(update={"image_size": 16}).config().vision.image_size == 16
    with pytest.raises(InputError, match=r"t: model DiffCLIP-no-norm has no size: give `architecture`, or"):
        parse_recipe(fields, "t")


@pytest.mark.parametrize("name", ["DiffCLIP-no-norm", "DiffCLIP-one-map", "CLIP-registers"])
def test_weights_without_a_config_are_not_taken_for_another_model(name: str) -> None:
    with pytest.raises(InputError, match=r"do not tell which parts .* config\.json"):
        infer_config(tiny(name).state_dict())


@pytest.mark.parametrize("name", ["DiffCLIP-lambda0.5", "DiffCLIP-no-norm"])
def test_other_layouts_refuse_ablations_that_they_cannot_represent(name: str, tmp_path: Path) -> None:
    model, file = tiny(name), tmp_path / "published.pt"
    to_published = partial(save_published, file=file)
    for convert in (to_published, timm.from_diffclip, transformers.from_diffclip):
        if name == "DiffCLIP-lambda0.5":
            convert(model)
            continue
        with pytest.raises(InputError, match=rf"{name}-v32x3x4p8-t32x3x4 (lacks|has no published)") as error:
            convert(model)
        assert "\n" not in str(error.value)
    assert file.exists() == (name == "DiffCLIP-lambda0.5")
