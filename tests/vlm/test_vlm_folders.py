"""Models in folders: they come back as they were, and what cannot be used is said in a line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from diffclip.errors import InputError
from diffclip.vlm.folders import load_language_model, load_vision, load_vlm, save_vlm


@pytest.fixture(scope="module")
def saved(tiny_vlm: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_vlm(*tiny_vlm, folder)
    return folder


def test_a_model_comes_back_alone_or_from_its_run(
    saved: Path, tiny_vlm: tuple[Any, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    for source in (saved, str(saved.parent)):
        model, processor = load_vlm(source)
        assert not model.training
        before, after = tiny_vlm[0].state_dict(), model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert processor.image_token_id == tiny_vlm[1].image_token_id
        # pixels as the tower's own preparation gives them: transformers' first choice scales with torchvision
        assert type(processor.image_processor) is type(tiny_vlm[1].image_processor)
    assert capfd.readouterr() == ("", "")


def test_nothing_is_overwritten(saved: Path, tiny_vlm: tuple[Any, Any]) -> None:
    with pytest.raises(InputError, match="exists already"):
        save_vlm(*tiny_vlm, saved)


def test_what_is_no_model_is_said(
    saved: Path, tmp_path: Path, tiny_language_folder: Path, tiny_language_model: Any
) -> None:
    with pytest.raises(InputError, match="nowhere is no folder"):
        load_vlm("nowhere")
    with pytest.raises(InputError, match="holds no model: give"):
        load_vlm(tmp_path)
    (tmp_path / "recipe.yaml").write_text("vision: x")
    with pytest.raises(InputError, match="is a run that has not ended"):
        load_vlm(tmp_path)
    with pytest.raises(InputError, match="holds no model to ask about pictures"):
        load_vlm(tiny_language_folder)


@pytest.mark.parametrize("damage", ["cut off", "lacking"])
def test_damaged_weights(saved: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    file = folder / "model.safetensors"
    if damage == "cut off":
        file.write_bytes(file.read_bytes()[:5000])
        said = "holds no model to ask about pictures"
    else:
        tensors = load_file(file)
        del tensors["model.multi_modal_projector.weight"]
        save_file(tensors, file, metadata={"format": "pt"})
        said = "its weights lack model.multi_modal_projector.weight"
    with pytest.raises(InputError, match=said):
        load_vlm(folder)


def test_a_processor_that_is_missing(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder, ignore=shutil.ignore_patterns("processor_config.json", "tokenizer*"))
    with pytest.raises(InputError, match="has no processor"):
        load_vlm(folder)


def test_a_vision_tower_and_a_language_model(
    tiny_clip_folder: Path, tiny_language_folder: Path, tiny_vision: Any, tiny_language_model: Any
) -> None:
    vision, image_processor = load_vision(str(tiny_clip_folder))
    pixels = torch.ones(1, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(vision(pixels).last_hidden_state, tiny_vision(pixels).last_hidden_state)
    assert dict(image_processor.crop_size) == {"height": 16, "width": 16}
    language, tokenizer = load_language_model(str(tiny_language_folder))
    assert torch.equal(language.lm_head.weight, tiny_language_model.lm_head.weight)
    assert tokenizer.convert_tokens_to_ids("<|image_pad|>") == 3


def test_what_is_no_tower_and_no_language_model(tmp_path: Path, tiny_clip_folder: Path) -> None:
    with pytest.raises(InputError, match="is a model's name, which has no weights"):
        load_vision("DiffCLIP-ViT-B-16")
    with pytest.raises(InputError, match="does not exist"):
        load_vision("no/where")
    with pytest.raises(InputError, match="language_model nowhere is no folder"):
        load_language_model("nowhere")
    with pytest.raises(InputError, match=r"language_model .* cannot be used \("):
        load_language_model(str(tiny_clip_folder))
    transformers.ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="is a vit, no causal language model"):
        load_language_model(str(tmp_path))


def test_code_of_strangers_is_not_run(tmp_path: Path, tiny_language_folder: Path) -> None:
    folder = tmp_path / "strange"
    shutil.copytree(tiny_language_folder, folder)
    marker = tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w')")
    config = (folder / "config.json").read_text().replace('"qwen2"', '"own"')
    auto = '{"auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"},'
    (folder / "config.json").write_text(auto + config.lstrip().removeprefix("{"))
    with pytest.raises(InputError, match="cannot be used"):
        load_language_model(str(folder))
    assert not marker.exists()
