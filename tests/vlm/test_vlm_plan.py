"""The plan of a stage: exact where it can be, and made of what the recipe names alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from diffclip.vlm.lengths import count_lengths
from diffclip.vlm.sizes import LANGUAGE_MODELS, language_config, vision_config
from tiny_vlm import PATCHES
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from diffclip.cli.main import app
from diffclip.errors import InputError
from diffclip.vlm.conversations import read_conversations
from diffclip.vlm.plan import plan_stage
from diffclip.vlm.recipe import VLMRecipe, read_vlm_recipe

# their model cards at huggingface.co
PUBLISHED = {"0.5B": 494_032_768, "1.5B": 1_543_714_304, "3B": 3_085_938_688, "7B": 7_615_616_512}


@pytest.fixture(scope="module")
def recipe_file(
    tmp_path_factory: pytest.TempPathFactory, tiny_clip_folder: Path, tiny_language_folder: Path
) -> Path:
    part = {"json": "nowhere.json", "images": "nowhere", "lr": 1e-3, "batch_size": 8}
    part |= {"per_device_batch_size": 2, "expected_samples": 100, "epochs": 2}
    fields = {
        "vision": str(tiny_clip_folder),
        "language_model": str(tiny_language_folder),
        "precision": "fp32",
    }
    file = tmp_path_factory.mktemp("recipes") / "tiny.yaml"
    file.write_text(yaml.safe_dump(fields | {"stage1": part, "stage2": part | {"lr": 1e-5}}))
    return file


@pytest.fixture(scope="module")
def recipe(recipe_file: Path) -> VLMRecipe:
    return read_vlm_recipe(recipe_file)


@pytest.fixture(scope="module")
def plans(recipe: VLMRecipe) -> dict[int, Any]:
    return {stage: plan_stage(recipe, stage, devices=2) for stage in (1, 2)}


def test_parameters_are_the_models(plans: dict[int, Any], tiny_vlm: tuple[Any, Any]) -> None:
    model = tiny_vlm[0]
    tower, words = (
        sum(parameter.numel() for parameter in part.parameters())
        for part in (model.model.vision_tower, model.model.language_model)
    )
    assert plans[1].parameters == {
        "vision tower": (tower, 0),
        "connector": (17 * 32, 17 * 32),
        "language model": (words, 0),
    }
    assert plans[2].parameters["language model"] == (words, words)
    assert plans[2].parameters["vision tower"] == (tower, 0)


def test_steps_and_batches(plans: dict[int, Any]) -> None:
    plan = plans[1]
    assert (plan.per_device, plan.devices, plan.passes, plan.batch_size) == (2, 2, 2, 8)
    assert (plan.samples, plan.samples_known, plan.steps, plan.warmup) == (100, False, 26, 1)
    assert plan.picture_tokens == PATCHES


def test_stage_2_takes_more(plans: dict[int, Any]) -> None:
    first, second = plans[1], plans[2]
    assert second.memory["optimiser"] == 8 * sum(trained for _, trained in second.parameters.values())
    assert second.memory["weights"] == first.memory["weights"]
    assert second.flops > 1.3 * first.flops
    assert json.loads(json.dumps(second.as_json()))["memory"]["total"] == sum(second.memory.values())


def test_operations_are_those_of_the_formula(plans: dict[int, Any], tiny_vlm: tuple[Any, Any]) -> None:
    """A weight and token take two forward and four backward; a map's entries likewise, in both of its products."""
    model, plan = tiny_vlm[0], plans[2]
    weights = sum(parameter.numel() for parameter in model.model.language_model.layers.parameters())
    weights += model.lm_head.weight.numel()
    tokens = round(plan.lengths.padded)
    maps = 2 * 2 * tokens**2 * 32
    assert plan.flops == pytest.approx(6 * weights * tokens + 6 * maps, rel=0.02)


def test_the_json_is_counted_where_it_is(recipe_file: Path, conversations: tuple[Path, Path]) -> None:
    file, pictures = conversations
    changes = [f"stage2.json={file}", "stage2.images=nowhere"]
    plan = plan_stage(read_vlm_recipe(recipe_file, changes), 2)
    assert (plan.samples, plan.samples_known, plan.lengths.measured) == (12, True, True)
    samples = read_conversations(file, pictures)
    one, many = (count_lengths(samples, "chat", PATCHES, 2048, together) for together in (1, 500))
    assert one.mean == pytest.approx(one.padded)
    assert many.padded == pytest.approx(PATCHES + 20 + 10 + (len("Is the picture light?Yes")) / 4, abs=0.01)
    assert count_lengths(samples, "chat", PATCHES, 10, 1).mean == 10


@pytest.mark.parametrize("size", PUBLISHED)
def test_known_language_models_have_the_published_numbers_of_parameters(size: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(language_config(f"Qwen/Qwen2.5-{size}-Instruct"))
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[size]


def test_names_of_towers() -> None:
    for name in ("hf-hub:hammh0a/DiffCLIP_ViTB16_CC12M", "DiffCLIP-ViT-B-16"):
        config = vision_config(name)
        assert (config.hidden_size, config.num_hidden_layers, config.attention) == (768, 12, "differential")
    assert vision_config("CLIP-ViT-B-16").attention == "softmax"


def test_what_cannot_be_planned(recipe_file: Path, tiny_clip_folder: Path) -> None:
    def said(*changes: str, **how: Any) -> str:
        with pytest.raises(InputError) as caught:
            plan_stage(read_vlm_recipe(recipe_file, changes), 1, **how)
        return str(caught.value)

    assert "give stage1.json, or stage1.expected_samples" in said("stage1.expected_samples=null")
    assert "batch_size 8 does not divide by per_device_batch_size 2 × 3 processes" in said(devices=3)
    assert "hf-hub:a/b: its size is not known" in said("vision=hf-hub:a/b")
    nearest = "did you mean 'Qwen/Qwen2.5-0.5B'"
    assert nearest in said("language_model=Qwen/Qwen2.5-05B")
    assert "no usable config.json" in said(f"language_model={tiny_clip_folder}")
    assert "did you mean 'h100'" in said(gpu="h10")
    assert "price nan must be a number of dollars" in said(price=float("nan"))
    assert f"a picture alone has {PATCHES} tokens" in said(f"max_length={PATCHES}")
    assert "v100 has no bfloat16" in said("precision=bf16", gpu="v100")


def test_the_command(recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["vlm", "train", "--stage", "1", str(recipe_file), "--dry-run", "--devices", "2"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "2 a GPU × 2 × 2 passes = 8" in result.stdout
    assert "the number of samples is the recipe's expected_samples" in result.stdout
    assert "frozen" in result.stdout
    assert not list(tmp_path.iterdir())
    alone = CliRunner().invoke(app, [*arguments[:5], "--gpu", "h100", "--json"])
    assert "--gpu, --json belong to --dry-run" in str(alone.exception)


def test_the_table_is_of_configurations_that_build() -> None:
    assert {name.removesuffix("-Instruct") for name in LANGUAGE_MODELS} == {
        f"Qwen/Qwen2.5-{s}" for s in PUBLISHED
    }
