"""Ablations, which are DiffCLIP with one part changed: their parts, names, recipes and other layouts."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny import SIZES, TOKENS, random_images
from torch import Tensor

import diffclip
from diffclip import CLIP, InputError
from diffclip.config import (
    ABLATIONS,
    VARIANTS,
    parse_config,
    variant_config,
    variant_of,
)
from diffclip.integrations import timm, transformers
from diffclip.integrations.open_clip import OpenCLIPModel
from diffclip.maps.recording import recording
from diffclip.published import infer_config
from diffclip.report.names import variant_in_name
from diffclip.training.recipe import model_fields, parse_recipe
from diffclip.weights import save_published


def tiny(name: str, seed: int = 0) -> CLIP:
    return CLIP(variant_config(name, SIZES), seed=seed).eval()


def outputs(model: CLIP) -> tuple[Tensor, Tensor]:
    return model.encode_image(random_images()), model.encode_text(TOKENS)


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_changes_the_part_that_its_name_says(name: str) -> None:
    model, whole = tiny(name), tiny("DiffCLIP")
    changed = ABLATIONS[name].get("differential", {})
    start = ABLATIONS[name].get("lambda_init", 0.8)
    for layer in (layer for tower in model.attention_layers().values() for layer in tower):
        parts = layer.head_norm, layer.factor, layer.lambda_fixed
        wanted = {"head_norm": True, "factor": True, "lambda_fixed": None} | changed
        assert parts == tuple(wanted.values())
        assert layer.out_scale == pytest.approx(1 - start if layer.factor else 1.0)
    assert not any(torch.equal(a, b) for a, b in zip(outputs(model), outputs(whole), strict=True))
    config = variant_config(name, SIZES)
    assert diffclip.config.name_of(config) == f"{name}-v32x3x4p8-t32x3x4"
    for label in (name, f"{name}-v32x3x4p8-t32x3x4"):
        assert variant_in_name(label) == variant_of(config) == name
    assert model_fields(config, "w")["model"] == name


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variants_config_is_saved_without_ablation_fields(variant: str) -> None:
    config = variant_config(variant, SIZES)
    keys = ["embed_dim", "vision", "text", "lambda_init", "logit_bias", "preprocess", "tokenizer"]
    assert list(config.model_dump()) == list(json.loads(config.model_dump_json())) == keys


def test_invalid_model_settings_are_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="did you mean 'DiffCLIP-no-norm'"):
        variant_config("DiffCLIP-nonorm", SIZES)
    with pytest.raises(InputError, match="architecture has differential: the model DiffCLIP decides that"):
        variant_config("DiffCLIP", SIZES | {"differential": {"factor": False}})
    with pytest.raises(InputError, match="differential is set, and no tower has the attention") as error:
        parse_config(SIZES | {"differential": {"factor": False}}, "c")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"preprocess\.resize 8 is smaller than the image size"):
        variant_config("CLIP", SIZES | {"preprocess": {"resize": 8}})
    with pytest.raises(InputError, match=r"vision\.image_size: Input should be less than or equal to 8192"):
        parse_config(SIZES | {"vision": SIZES["vision"] | {"image_size": 80_000}}, "c")
    mix = variant_config("DiffCLIP", SIZES)
    mix.differential.head_norm, mix.differential.lambda_fixed = False, 0.5
    assert variant_of(mix) == "custom"
    with pytest.raises(InputError, match=r"λ_init 0\.8, head_norm False, lambda_fixed 0\.5: a recipe cannot"):
        model_fields(mix, "w")


def test_a_recipe_accepts_an_ablation_like_a_variant() -> None:
    fields = {"model": "DiffCLIP-no-norm", "epochs": 1, "batch_size": 2, "data": {"train": "x"}}
    recipe = parse_recipe(fields | {"architecture": SIZES}, "t")
    assert variant_of(recipe.config()) == "DiffCLIP-no-norm"
    assert recipe.model_copy(update={"image_size": 16}).config().vision.image_size == 16
    with pytest.raises(InputError, match=r"t: model DiffCLIP-no-norm has no size: give `architecture`$"):
        parse_recipe(fields, "t")


@pytest.mark.parametrize("name", ["DiffCLIP-no-norm", "DiffCLIP-lambda0", "CLIP-gated", "CLIP-registers"])
def test_weights_without_a_config_are_not_taken_for_another_model(name: str) -> None:
    with pytest.raises(InputError, match=r"do not tell which parts .* config\.json"):
        infer_config(tiny(name).state_dict())


@pytest.mark.parametrize("name", ["DiffCLIP-lambda0.5", "DiffCLIP-no-norm", "DiffCLIP-lambda0"])
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


def test_recording_and_open_clip_work_with_an_ablation() -> None:
    model = tiny("DiffCLIP-no-norm")
    with recording(model, "visual") as layer_maps:
        features = model.encode_image(random_images())
    torch.testing.assert_close(features, model.encode_image(random_images()))
    assert [float(maps.lam) for maps in layer_maps] == pytest.approx(model.lambdas()["visual"].tolist())
    theirs = OpenCLIPModel(model.config).eval()
    theirs.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(theirs.encode_image(random_images()), model.encode_image(random_images()))
