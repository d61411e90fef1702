"""Recipes: they read, say what is wrong with them, and those of the paper are the paper's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from diffclip.data.caption_sets import duration
from diffclip.errors import InputError
from diffclip.training.recipe import recipe_folders
from diffclip.vlm.plan import plan_stage
from diffclip.vlm.recipe import read_vlm_recipe, to_yaml

FILES = sorted(file for folder in recipe_folders() for file in folder.glob("vlm_*.yaml"))
PAPER = {1: "vlm_qwen05b_stage1", 2: "vlm_qwen05b_stage2"}
COST = re.compile(
    r"# Cost: by `diffclip vlm train --stage (?P<stage>\d) recipes/(?P<name>\w+)\.yaml --dry-run "
    r"--gpu (?P<gpu>\S+) --devices (?P<devices>\d+)`:\s(?:#\s+)?(?P<time>[\d.]+ \w+),\s(?:#\s+)?\$(?P<cost>[\d.,]*\d), "
    r"(?P<gib>\d+) GiB"
)
FIELDS: dict[str, Any] = {
    "vision": "tower",
    "language_model": "words",
    "stage1": {"json": "a.json", "images": "a", "lr": 1e-3, "batch_size": 8, "per_device_batch_size": 4},
}


def written(folder: Path, **changes: Any) -> Path:
    fields = {key: value for key, value in (FIELDS | changes).items() if value is not None}
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(fields))
    return file


def head(name: str) -> str:
    lines = next(file for file in FILES if file.stem == name).read_text(encoding="utf-8").splitlines()
    return "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))])


def test_what_is_left_out_is_llavas(tmp_path: Path) -> None:
    recipe = read_vlm_recipe(
        written(tmp_path),
        ["stage2.lr=2e-5", "seed=3"]
        + [
            f"stage2.{key}={FIELDS['stage1'][key]}"
            for key in ("json", "images", "batch_size", "per_device_batch_size")
        ],
    )
    assert (recipe.connector, recipe.max_length, recipe.precision, recipe.seed) == ("linear", 2048, "bf16", 3)
    first, second = recipe.stage(1), recipe.stage(2)
    assert (first.template, second.template) == ("plain", "chat")
    assert (first.warmup_ratio, first.weight_decay, first.epochs, second.lr) == (0.03, 0.0, 1, 2e-5)


def test_a_recipe_that_is_written_reads_again(tmp_path: Path) -> None:
    recipe = read_vlm_recipe(written(tmp_path))
    (tmp_path / "again.yaml").write_text(to_yaml(recipe))
    assert read_vlm_recipe(tmp_path / "again.yaml") == recipe
    assert "stage2" not in to_yaml(recipe)


def test_a_recipe_builds_on_another(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "over.yaml").write_text("base: recipe.yaml\nconnector: mlp2x_gelu\nstage1: {lr: 5.0e-4}\n")
    recipe = read_vlm_recipe(tmp_path / "over.yaml")
    assert (recipe.connector, recipe.stage(1).lr, recipe.stage(1).batch_size) == ("mlp2x_gelu", 5e-4, 8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["conector=linear"], "unknown recipe key 'conector': did you mean 'connector'"),
        (["stage1.learning_rate=1"], "unknown recipe key 'stage1.learning_rate'"),
        (["connector=mlp2x_gello"], "unknown connector 'mlp2x_gello': did you mean 'mlp2x_gelu'"),
        (["stage1.template=vicuna"], r"stage1.template: Input should be 'plain' or 'chat'"),
        (["stage1.lr=0"], r"stage1.lr: Input should be greater than 0"),
        (["stage1=null"], "has neither stage1 nor stage2"),
        (["stage1.start=runs/x"], "only stage 2 starts from a model"),
        (["vision=null"], "vision: Input should be a valid string"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, changes: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read_vlm_recipe(written(tmp_path), changes)
    assert "\n" not in str(caught.value)


def test_stages_that_are_not_there(tmp_path: Path) -> None:
    recipe = read_vlm_recipe(written(tmp_path))
    with pytest.raises(InputError, match="the recipe has no stage2: choose --stage 1"):
        recipe.stage(2)
    with pytest.raises(InputError, match="there are stages 1 and 2"):
        recipe.stage(3)


def test_a_recipe_of_the_other_command_is_told_so() -> None:
    with pytest.raises(InputError, match="is a recipe of `diffclip train`"):
        read_vlm_recipe("cc12m_vitb16")


@pytest.mark.parametrize("stage", [1, 2])
def test_the_papers_settings(stage: int) -> None:
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


@pytest.mark.parametrize("name", PAPER.values())
def test_the_first_lines_say_what_why_and_how_much(name: str) -> None:
    said = head(name)
    places = [said.find(f"# {word}: ") for word in ("Reproduces", "Command", "Expected", "Cost")]
    assert places[0] == 0
    assert places == sorted(places)
    assert -1 not in places
    assert name in said[places[1] : places[2]]
    assert max(map(len, said.splitlines())) <= 120
    assert COST.search(said)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER.values())
def test_the_cost_is_what_the_plan_says(name: str) -> None:
    said = COST.search(head(name))
    assert said is not None
    assert said["name"] == name
    plan = plan_stage(read_vlm_recipe(name), int(said["stage"]), int(said["devices"]), said["gpu"])
    assert plan.fits
    assert duration(plan.hours) == said["time"]
    assert plan.cost == pytest.approx(float(said["cost"].replace(",", "")), rel=0.01, abs=0.01)
    assert sum(plan.memory.values()) / 2**30 == pytest.approx(int(said["gib"]), abs=0.6)
