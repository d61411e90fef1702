"""Saving and loading through the Auto classes: equality, missing and tied keys, types."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_transformers_models import IDS, PIXELS, VARIANTS, core, near
from transformers import AutoConfig, AutoModel, AutoModelForZeroShotImageClassification

import diffclip
from diffclip import InputError
from diffclip.integrations.transformers import (
    DiffCLIPConfig,
    DiffCLIPModel,
    DiffCLIPVisionModel,
    from_diffclip,
    load_transformers,
    save_transformers,
    vision_from_diffclip,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with few words, which goes without a tokenizer."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_transformers(core(), folder)
    text = json.loads((folder / "config.json").read_text())["text_config"]
    assert (text["bos_token_id"], text["eos_token_id"]) == (None, None)
    return folder


def changed(folder: Path, target: Path, change: Any) -> Path:
    """A copy of `folder` whose tensors went through `change`."""
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_saved_comes_back(tmp_path: Path, variant: str) -> None:
    model = core(**VARIANTS[variant])
    save_transformers(model, tmp_path / "model")
    assert isinstance(AutoConfig.from_pretrained(tmp_path / "model"), DiffCLIPConfig)
    loaded, faults = AutoModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert isinstance(loaded, DiffCLIPModel)
    assert not loaded.training
    assert not any(faults.values())
    near(loaded(IDS, PIXELS).to_tuple(), from_diffclip(model)(IDS, PIXELS).to_tuple(), 0)
    back = load_transformers(tmp_path / "model", "the model")
    assert back.config == model.config
    assert torch.equal(back.encode_text(IDS), model.encode_text(IDS))


def test_a_folder_without_a_processor_keeps_how_images_are_prepared(tmp_path: Path) -> None:
    model = core(preprocess={"mean": (0.1, 0.2, 0.3), "interpolation": "bicubic", "resize": "squash"})
    from_diffclip(model).save_pretrained(tmp_path)  # as the Trainer does
    assert load_transformers(tmp_path, "the model").config == model.config
    with pytest.raises(InputError, match=r"was saved by transformers: run diffclip convert transformers:"):
        diffclip.load(tmp_path)


def test_each_model_has_its_auto_class(folder: Path, tmp_path: Path) -> None:
    zero_shot = AutoModelForZeroShotImageClassification.from_pretrained(folder)
    assert isinstance(zero_shot, DiffCLIPModel)
    vision = vision_from_diffclip(core())
    vision.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    assert isinstance(again, DiffCLIPVisionModel)
    near(again(PIXELS).pooler_output, vision(PIXELS).pooler_output, 0)
    text = AutoModel.from_config(zero_shot.config.text_config)
    assert type(text).__name__ == "DiffCLIPTextModel"


def test_missing_weights_are_reported_and_start_as_the_cores_do(folder: Path, tmp_path: Path) -> None:
    gone = {
        "vision_model.visual.blocks.0.attn.lambda_q1",
        "vision_model.visual.blocks.1.norm1.weight",
        "vision_model.visual.pos_embed",
        "visual_projection.weight",
        "text_model.positional_embedding",
        "text_model.transformer.resblocks.0.attn.qkv.bias",
        "logit_scale",
    }
    lacking = changed(folder, tmp_path / "lacking", lambda tensors: [tensors.pop(name) for name in gone])
    torch.manual_seed(0)
    loaded, faults = DiffCLIPModel.from_pretrained(lacking, output_loading_info=True)
    assert set(faults["missing_keys"]) == gone
    whole, state = DiffCLIPModel.from_pretrained(folder).state_dict(), loaded.state_dict()
    for name in whole.keys() - gone:
        assert torch.equal(state[name], whole[name]), name
    near(state["logit_scale"].exp(), torch.tensor(1 / 0.07))
    assert torch.equal(state["vision_model.visual.blocks.1.norm1.weight"], torch.ones(32))
    assert not state["text_model.transformer.resblocks.0.attn.qkv.bias"].any()
    near(state["vision_model.visual.blocks.0.attn.lambda_q1"].std(), torch.tensor(0.1), 0.07)
    near(state["vision_model.visual.pos_embed"].std(), torch.tensor(0.02), 0.005)
    near(state["visual_projection.weight"].std(), torch.tensor(32**-0.5), 0.03)
    with pytest.raises(InputError, match=r"missing keys logit_scale, text_model"):
        load_transformers(lacking, "lacking")


def test_weights_too_many_are_reported(folder: Path, tmp_path: Path) -> None:
    more = changed(folder, tmp_path / "more", lambda tensors: tensors.update(more=torch.ones(3)))
    with pytest.raises(InputError, match="unexpected keys more"):
        load_transformers(more, "more")


def test_types_on_loading(folder: Path, tmp_path: Path) -> None:
    loaded = DiffCLIPModel.from_pretrained(folder, dtype=torch.bfloat16)
    for name, parameter in loaded.named_parameters():
        assert parameter.dtype == (torch.float32 if ".lambda_" in name else torch.bfloat16), name
    assert loaded.dtype == torch.bfloat16
    # λ has lost nothing on the way through bfloat16
    exact = load_file(folder / "model.safetensors")
    name = "vision_model.visual.blocks.0.attn.lambda_q1"
    assert torch.equal(loaded.state_dict()[name], exact[name])
    loaded.save_pretrained(tmp_path / "half")
    again = AutoModel.from_pretrained(tmp_path / "half", dtype="auto")
    assert again.dtype == torch.bfloat16
    near(again(IDS, PIXELS).to_tuple(), loaded(IDS, PIXELS).to_tuple(), 0)
