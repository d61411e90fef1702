"""Recipes and plans of stages; the paper's recipes have its settings, and their first lines the plan's numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny_vlm import PATCHES
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from diffclip.cli.main import app
from diffclip.errors import InputError
from diffclip.vlm.plan import language_config, plan_stage, vision_config
from diffclip.vlm.recipe import VLMRecipe, read_vlm_recipe, to_yaml

PAPER = {1: "vlm_qwen05b_stage1", 2: "vlm_qwen05b_stage2"}
COST = re.compile(
    r"# Cost: by `diffclip vlm train --stage (?P<stage>\d) recipes/(?P<name>\w+)\.yaml --dry-run "
    r"--gpu (?P<gpu>\S+) --devices (?P<devices>\d+)`:\s(?:#\s+)?(?P<hours>[\d.]+) h,\s(?:#\s+)?(?P<gib>\d+) GiB"
)


@pytest.fixture
def file(tmp_path: Path, tiny_clip_folder: Path, tiny_language_folder: Path) -> Path:
    part = {"json": "nowhere.json", "images": "nowhere", "lr": 1e-3, "batch_size": 8}
    part |= {"per_device_batch_size": 2, "expected_samples": 100, "epochs": 2}
    fields = {
        "vision": str(tiny_clip_folder),
        "language_model": str(tiny_language_folder),
        "precision": "fp32",
    }
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
    assert (recipe.stage(1).template, recipe.stage(2).template) == ("plain", "chat")
    assert (recipe.stage(1).warmup_ratio, recipe.stage(1).weight_decay) == (0.03, 0.0)
    (tmp_path / "again.yaml").write_text(to_yaml(recipe.only(1)))
    assert read_vlm_recipe(tmp_path / "again.yaml") == recipe.only(1)
    assert "stage2" not in to_yaml(recipe.only(1))
    (tmp_path / "over.yaml").write_text("base: tiny.yaml\nconnector: mlp2x_gelu\nstage1: {lr: 5.0e-4}\n")
    over = read_vlm_recipe(tmp_path / "over.yaml", ["seed=3"])
    assert (over.connector, over.stage(1).lr, over.stage(1).batch_size, over.seed) == (
        "mlp2x_gelu",
        5e-4,
        8,
        3,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["conector=linear"], "unknown recipe key 'conector': did you mean 'connector'"),
        (["stage1.learning_rate=1"], "unknown recipe key 'stage1.learning_rate'"),
        (["connector=mlp2x_gello"], "connector: Input should be 'linear' or 'mlp2x_gelu'"),
        (["stage1.template=vicuna"], r"stage1.template: Input should be 'plain' or 'chat'"),
        (["stage1.lr=0"], r"stage1.lr: Input should be greater than 0"),
        (["stage1=null", "stage2=null"], "has neither stage1 nor stage2"),
        (["stage1.start=runs/x"], "only stage 2 starts from a model"),
        (["vision=null"], "vision: Input should be a valid string"),
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


def test_plans_count_parameters_steps_and_operations(recipe: VLMRecipe, tiny_vlm: tuple[Any, Any]) -> None:
    model = tiny_vlm[0]
    first, second = (plan_stage(recipe, stage, devices=2) for stage in (1, 2))
    tower, words = (
        sum(parameter.numel() for parameter in part.parameters())
        for part in (model.model.vision_tower, model.model.language_model)
    )
    connector = 17 * 32
    parts = {"vision tower": tower, "connector": connector, "language model": words}
    assert {name: first[f"parameters of the {name}"] for name in parts} == parts
    assert (first["trained parameters"], second["trained parameters"]) == (connector, connector + words)
    assert (first["samples of a GPU in a pass"], first["GPUs"], first["passes of a step"]) == (2, 2, 2)
    assert (first["samples"], first["steps"], first["warm-up steps"], first["image tokens"]) == (
        100,
        26,
        1,
        PATCHES,
    )
    assert not first["samples counted"]
    assert second["GiB of gradients and optimizer"] == pytest.approx(16 * (connector + words) / 2**30)
    # a weight and token take two forward and four backward; a map's entries likewise, in both of its products
    weights = sum(parameter.numel() for parameter in model.model.language_model.layers.parameters())
    weights += model.lm_head.weight.numel()
    tokens = round(second["tokens of a sample, with padding"])
    flops = 1e9 * second["GFLOP of a sample"]
    assert flops == pytest.approx(6 * weights * tokens + 12 * 2 * tokens**2 * 32, rel=0.1)
    assert flops > 1.3e9 * first["GFLOP of a sample"]


def test_plans_count_the_json(file: Path, conversations: tuple[Path, Path]) -> None:
    plan = plan_stage(read_vlm_recipe(file, [f"stage2.json={conversations[0]}", "stage2.images=nowhere"]), 2)
    assert (plan["samples"], plan["samples counted"]) == (12, True)
    mean, padded, longest = (
        plan[f"tokens of a sample, {kind}"] for kind in ("mean", "with padding", "longest")
    )
    assert longest == pytest.approx(PATCHES + 20 + 10 + len("Is the picture light?Yes") / 4)
    assert mean <= padded <= longest


def test_known_models() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(language_config("Qwen/Qwen2.5-0.5B-Instruct"))
    assert sum(parameter.numel() for parameter in model.parameters()) == 494_032_768  # its model card
    for name in ("hf-hub:hammh0a/DiffCLIP_ViTB16_CC12M", "DiffCLIP-ViT-B-16"):
        config = vision_config(name)
        assert (config.hidden_size, config.num_hidden_layers, config.attention) == (768, 12, "differential")
    assert vision_config("CLIP-ViT-B-16").attention == "softmax"


def test_plans_that_cannot_be_made(file: Path, tiny_clip_folder: Path) -> None:
    def message(*changes: str, **options: Any) -> str:
        with pytest.raises(InputError) as caught:
            plan_stage(read_vlm_recipe(file, changes), 1, **options)
        return str(caught.value)

    assert "give stage1.json, or stage1.expected_samples" in message("stage1.expected_samples=null")
    assert "batch_size 8 does not divide by per_device_batch_size 2 × 3 processes" in message(devices=3)
    assert "hf-hub:a/b: its size is not known" in message("vision=hf-hub:a/b")
    assert "cannot be used" in message(f"language_model={tiny_clip_folder}")
    assert "did you mean 'h100'" in message(gpu="h10")
    assert f"an image alone has {PATCHES} tokens" in message(f"max_length={PATCHES}")


def test_the_command_prints_the_plan(file: Path, tmp_path: Path) -> None:
    arguments = ["vlm", "train", "--stage", "1", str(file), "--dry-run", "--devices", "2"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "samples are the recipe's expected_samples" in result.stdout
    assert "trained parameters" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]
    plan = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert plan["steps"] == 26
    alone = CliRunner().invoke(app, [*arguments[:5], "--gpu", "h100", "--json"])
    assert "belong to --dry-run" in str(alone.exception)


@pytest.mark.parametrize("stage", [1, 2])
def test_the_papers_recipes_have_its_settings(stage: int) -> None:
    recipe = read_vlm_recipe(PAPER[stage])
    part = recipe.stage(stage)
    assert recipe.vision == "hf-hub:hammh0a/DiffCLIP_ViTB16_CC12M"
    assert recipe.language_model == "Qwen/Qwen2.5-0.5B-Instruct"
    assert (recipe.connector, recipe.precision, recipe.max_length) == ("linear", "bf16", 2048)
    assert (part.batch_size, part.epochs, part.weight_decay, part.warmup_ratio) == (192, 1, 0, 0.03)
    assert part.lr == {1: 1e-3, 2: 2e-5}[stage]
    assert part.template == {1: "plain", 2: "chat"}[stage]
    assert part.expected_samples == {1: 558_128, 2: 350_000}[stage]
    assert (recipe.stage2 if stage == 1 else recipe.stage1) is None


@pytest.mark.slow(minutes=1)
@pytest.mark.parametrize("stage", [1, 2])
def test_the_papers_recipes_state_the_plans_cost(stage: int) -> None:
    name = PAPER[stage]
    head = (
        (Path(__file__).parents[2] / "recipes" / f"{name}.yaml")
        .read_text(encoding="utf-8")
        .split("\nvision:")[0]
    )
    stated = COST.search(head)
    assert stated is not None
    assert (stated["name"], int(stated["stage"])) == (name, stage)
    plan = plan_stage(read_vlm_recipe(name), stage, int(stated["devices"]), stated["gpu"])
    assert plan["GiB in all"] < plan["GiB of the GPU"]
    assert plan["hours"] == pytest.approx(float(stated["hours"]), abs=0.006)
    assert plan["GiB in all"] == pytest.approx(int(stated["gib"]), abs=0.6)
