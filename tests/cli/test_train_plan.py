"""`diffclip train --dry-run`: its output, messages and exit codes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_process import diffclip_command
from made_sets import write_shard_of
from tiny_recipe import tiny_recipe

from diffclip.training.recipe import read_recipe

RECIPE = tiny_recipe(size=32, width=32, layers=2, heads=4, epochs=3, precision="bf16")


@pytest.fixture
def place(tmp_path: Path, image_folder: Path) -> Path:
    """A folder with a recipe, two shards to train on and one to validate on."""
    good = [{"png": image.read_bytes(), "txt": b"a plain picture"} for image in image_folder.iterdir()]
    for name, count in (("train/0.tar", 4), ("train/1.tar", 3), ("val/0.tar", 1)):
        write_shard_of(tmp_path / name, enumerate(count * good))
    write_recipe(tmp_path, {"train": "train", "val": "val"})
    return tmp_path


def dry_run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return diffclip_command("train", "tiny.yaml", "--dry-run", *arguments, cwd=cwd)


def write_recipe(folder: Path, data: dict[str, Any], **changes: Any) -> None:
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE | {"data": data} | changes))


def test_dry_run_prints_the_plan_and_checks_the_data(place: Path) -> None:
    done = dry_run("--devices", 1, cwd=place)
    assert done.returncode == 0, done.stderr
    for line in (
        "batch 8: 1 process, 8 samples each",
        "attention, beyond a plain layer",
        ", ten timed steps",
        "3 epochs × 2 = 6",
        "training data: 21 samples per epoch in 2 batches, 5 left out of each",
        "validation data: 3 images with 3 captions",
    ):
        assert line in done.stdout
    assert done.stderr == ""
    files = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert files == {"tiny.yaml", "train/0.tar", "train/1.tar", "val/0.tar"}
    # a plan for more GPUs than this machine has
    words = dry_run("lr=0.5", "--devices", 2, "--nodes", 4, cwd=place).stdout.splitlines()[-1]
    assert words == (
        "MASTER_ADDR=… MASTER_PORT=29500 NODE_RANK=… diffclip train tiny.yaml lr=0.5 --run "
        "runs/tiny-DiffCLIP-s0 --resume --devices 2 --nodes 4 --strategy auto"
    )
    options = ["--json", "--devices", 2, "--nodes", 2, "--strategy", "fsdp"]
    plan = json.loads(dry_run(*options, cwd=place).stdout)
    assert (plan["world"], plan["strategy"], plan["share"], plan["steps"]) == (4, "fsdp", 2, 6)
    assert plan["hours"] == pytest.approx(6 * 8 / plan["samples_per_second"] / 3600)
    assert plan["data"]["problems"] == []


def test_dry_run_prints_the_plan_even_if_data_is_missing(tmp_path: Path) -> None:
    write_recipe(tmp_path, {"train": "sets/cc3m/train", "expected_samples": 800})
    done = dry_run("--devices", 1, cwd=tmp_path)
    assert done.returncode == 2
    assert "3 epochs × 100 = 300" in done.stdout
    assert "training data: " in done.stderr
    assert "sets/cc3m/train" in done.stderr


def test_dry_run_reports_every_problem_in_one_line_each(place: Path) -> None:
    (place / "train" / "2.tar").write_bytes(b"no archive")
    data = {"train": "train", "val": "elsewhere", "expected_samples": 30}
    write_recipe(place, data, weights="nobody")
    done = dry_run("--devices", 1, cwd=place)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert all(line.startswith("diffclip: ") for line in lines)
    assert ["elsewhere" in lines[0], "nobody" in lines[1], len(lines)] == [True, True, 2]
    assert "2.tar" in done.stdout
    assert "21 samples per epoch" in done.stdout


def test_dry_run_reports_a_run_folder_in_use(place: Path) -> None:
    resumed = ("--devices", 1, "--run", "run", "--resume")
    assert dry_run(*resumed, cwd=place).returncode == 0  # a new run would start
    (place / "run" / "checkpoints" / "step_00000001").mkdir(parents=True)
    (place / "run" / "recipe.yaml").write_text(read_recipe(place / "tiny.yaml").to_yaml())
    assert "run holds a run already: add --resume" in dry_run(*resumed[:-1], cwd=place).stderr
    assert dry_run(*resumed, cwd=place).returncode == 0
