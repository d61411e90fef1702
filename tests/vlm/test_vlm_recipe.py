"""Recipes of both stages; the paper's recipes have its settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from diffclip.errors import InputError
from diffclip.vlm.recipe import VLMRecipe, read_vlm_recipe, to_yaml

PAPER = {1: "vlm_qwen05b_stage1", 2: "vlm_qwen05b_stage2"}


@pytest.fixture
def file(tmp_path: Path, tiny_clip_folder: Path, tiny_language_folder: Path) -> Path:
    part = {"json": "nowhere.json", "images": "nowhere", "lr": 1e-3, "batch_size": 8}
    part |= {"per_device_batch_size": 2, "epochs": 2}
    fields = {"vision": str(tiny_clip_folder), "language_model": str(tiny_language_folder)}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(fields | {"stage1": part, "stage2": part | {"lr": 1e-5}}))
    return path


@pytest.fixture
def recipe(file: Path) -> VLMRecipe:
    return read_vlm_recipe(file)


def test_recipes_have_llavas_defaults_and_read_as_they_were_written(
    recipe: VLMRecipe, tmp_path: Path
) -> None:
    assert (recipe.connector, recipe.max_length, recipe.seed) == ("linear", 2048, 0)
    assert (recipe.stage(1).warmup_ratio, recipe.stage(1).weight_decay) == (0.03, 0.0)
    (tmp_path / "again.yaml").write_text(to_yaml(recipe.only(1)))
    assert read_vlm_recipe(tmp_path / "again.yaml") == recipe.only(1)
    assert "stage2" not in to_yaml(recipe.only(1))
    (tmp_path / "over.yaml").write_text("base: tiny.yaml\nconnector: mlp2x_gelu\nstage1: {lr: 5.0e-4}\n")
    over = read_vlm_recipe(tmp_path / "over.yaml", ["seed=3"])
    assert (over.connector, over.seed) == ("mlp2x_gelu", 3)
    assert (over.stage(1).lr, over.stage(1).batch_size) == (5e-4, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["conector=linear"], "unknown recipe key 'conector': did you mean 'connector'"),
        (["stage1.learning_rate=1"], "unknown recipe key 'stage1.learning_rate'"),
        (["stage1=null", "stage2=null"], "has neither stage1 nor stage2"),
        (["stage1.start=runs/x"], "only stage 2 starts from a model"),
    ],
)
def test_wrong_recipes_are_one_line(file: Path, changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_vlm_recipe(file, changes)
    assert "\n" not in str(caught.value)


def test_stages_and_commands_that_do_not_fit(recipe: VLMRecipe) -> None:
    with pytest.raises(InputError, match="the recipe has no stage2: choose --stage 1"):
        recipe.only(1).stage(2)
    with pytest.raises(InputError, match="--stage 3: give 1 or 2"):
        recipe.stage(3)
    with pytest.raises(InputError, match="is a recipe of `diffclip train`"):
        read_vlm_recipe("cc12m_vitb16")


@pytest.mark.parametrize("stage", [1, 2])
def test_the_papers_recipes_have_its_settings(stage: int) -> None:
    recipe = read_vlm_recipe(PAPER[stage])
    part = recipe.stage(stage)
    assert recipe.vision == "hf-hub:hammh0a/DiffCLIP_ViTB16_CC12M"
    assert recipe.language_model == "Qwen/Qwen2.5-0.5B-Instruct"
    assert (recipe.connector, recipe.precision, recipe.max_length) == ("linear", "bf16", 2048)
    assert (part.batch_size, part.epochs, part.weight_decay, part.warmup_ratio) == (192, 1, 0, 0.03)
    assert part.lr == {1: 1e-3, 2: 2e-5}[stage]
    assert (recipe.stage2 if stage == 1 else recipe.stage1) is None
