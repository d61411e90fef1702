"""The recipes that come with the package: they read for every model, and say truly what they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diffclip.cli.train_plan import how_to_get
from diffclip.config import VARIANTS, name_of
from diffclip.data.download import CAPTION_SETS
from diffclip.training.logging import duration
from diffclip.training.plan import plan_run
from diffclip.training.recipe import Recipe, read_recipe
from diffclip.training.recipe_file import find_recipe, recipe_folders

# those of `diffclip vlm train` and of `diffclip study` have other schemas
FILES = sorted(
    file
    for folder in recipe_folders()
    for file in folder.glob("**/*.yaml")
    if not file.stem.startswith("vlm_") and file.parent.name != "study"
)
OF_WEIGHTS = [file for file in FILES if "\nmodel: of-weights\n" in file.read_text(encoding="utf-8")]
COST = re.compile(
    r"# Cost: by `diffclip train recipes/(?P<name>\w+)\.yaml --dry-run --gpu (?P<gpu>\S+) --devices (?P<devices>\d+)"
    r"(?: --nodes (?P<nodes>\d+))?(?:\s(?:#\s+)?(?P<model>model=\S+))?`:"
    r"\s(?:#\s+)?(?P<time>[\d\w ]+),\s(?:#\s+)?(?P<gib>\d+) GiB"
)


def plainly_read(file: Path, *changes: str) -> Recipe:
    """The recipe with a model of its own, as the weights that one leaves its model to are not there."""
    named = ["model=DiffCLIP-ViT-B-16"] if file in OF_WEIGHTS else []
    return read_recipe(file, [*named, *changes])


def head(file: Path) -> str:
    """The comment that a recipe begins with, in one line."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))])


def test_the_recipes_are_those_that_are_promised() -> None:
    promised = {"flickr8k_cpu", "flickr8k_gpu", "cc3m_vitb16", "cc12m_vitb16", "laion_vits16", "laion_vitl14"}
    assert promised <= {file.stem for file in FILES}
    of_weights = {file.stem for file in OF_WEIGHTS}
    assert of_weights == {"finetune_vitb16", "finetune_differential", "flickr8k_finetune"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recipe_reads_for_every_model(file: Path) -> None:
    plain = plainly_read(file)
    size = "" if plain.architecture else "-" + plain.model.partition("-")[2]
    for variant in VARIANTS:
        recipe = read_recipe(file, [f"model={variant}{size}"])
        assert name_of(recipe.config()).startswith(variant + "-")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_first_lines_say_what_why_and_how_much(file: Path) -> None:
    said = head(file)
    places = [said.find(f"# {word}: ") for word in ("Reproduces", "Command", "Expected", "Cost")]
    assert places[0] == 0
    assert places == sorted(places)
    assert -1 not in places
    assert file.stem in said[places[1] : places[2]]
    assert COST.search(said) or file.stem in ("flickr8k_cpu", "flickr8k_finetune", "scenes_demo")
    assert max(map(len, said.splitlines())) <= 120


@pytest.mark.parametrize(("name", "samples"), [("cc3m_vitb16", 2_300_000), ("cc12m_vitb16", 7_900_000)])
def test_the_papers_settings(name: str, samples: int) -> None:
    recipe = read_recipe(name)
    stated = {"epochs": 40, "batch_size": 4096, "lr": 5e-4, "weight_decay": 0.5, "warmup_epochs": 1}
    slips = {"betas": (0.9, 0.98), "eps": 1e-8, "lr_start": 1e-6, "lr_end": 1e-5, "loss": "clip"}
    ours = {"init": "published", "clip_grad_norm": None, "precision": "bf16"}
    for key, value in {**stated, **slips, **ours}.items():
        assert getattr(recipe, key) == value, key
    assert (recipe.data.scale, recipe.data.flip, recipe.data.statistics) == ((0.5, 1.0), 0.0, "imagenet")
    assert recipe.data.expected_samples == samples
    assert name_of(recipe.config()) == "DiffCLIP-ViT-B-16"


def test_warm_ups_are_the_numbers_of_steps_that_are_stated() -> None:
    stated = {"laion_vits16": 500, "laion_vitl14": 2000, "finetune_vitb16": 50, "finetune_differential": 500}
    for name, steps in stated.items():
        recipe = plainly_read(find_recipe(name))
        assert recipe.data.expected_samples is not None
        planned = recipe.warmup_epochs * (recipe.data.expected_samples // recipe.batch_size)
        assert planned == pytest.approx(steps, rel=0.02), name


def test_missing_data_is_named_with_the_command_that_gets_it() -> None:
    named = {file.stem: how_to_get(plainly_read(file)) for file in FILES}
    assert named["cc12m_vitb16"] == "diffclip data download cc12m --root sets"
    assert named["scenes_demo"] is None
    for command in filter(None, named.values()):
        assert command.split()[3] in {*CAPTION_SETS, "flickr8k"}
    flickr8k = how_to_get(read_recipe("flickr8k_cpu", ["data.train=sets/flickr8k/train"])) or ""
    assert flickr8k.startswith("diffclip data download flickr8k --root sets, then diffclip data make-shards")
    train = "data.train=[{shards: other}, {shards: 'my sets/cc3m/train', weight: 2}]"
    assert how_to_get(read_recipe("cc12m_vitb16", [train])) == "diffclip data download cc3m --root 'my sets'"


# counting over large models takes long
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=[pytest.mark.slow] if file.stem.startswith("laion") else [])
        for file in FILES
        if COST.search(head(file))
    ],
    ids=lambda file: file.stem,
)
def test_the_cost_is_what_the_plan_says(file: Path) -> None:
    said = COST.search(head(file))
    assert said is not None
    assert said["name"] == file.stem
    assert (said["model"] is not None) is (file in OF_WEIGHTS)
    recipe = plainly_read(file, *filter(None, [said["model"]]))
    plan = plan_run(recipe, int(said["devices"]) * int(said["nodes"] or 1), gpu=said["gpu"])
    assert plan["fits"]
    assert duration(3600 * plan["hours"]) == said["time"]
    assert plan["memory"]["total"] / 2**30 == pytest.approx(int(said["gib"]), abs=0.6)
