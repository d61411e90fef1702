"""Recipes and training: trained parts, batches, resumed runs, and the demo."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import in_process
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny_vlm import stopped_after_a_save, write_conversations

from diffclip.cli.console import show_progress
from diffclip.errors import DiffCLIPError, InputError
from diffclip.evaluation.records import read_records
from diffclip.vlm.demo import DemoSettings, run_vlm_demo
from diffclip.vlm.files import load_vlm
from diffclip.vlm.settings import VLMRecipe, read_vlm_recipe
from diffclip.vlm.train import check_run, train_stage
from diffclip.vlm.trainer import checkpoints

Read = Callable[..., VLMRecipe]


@pytest.fixture(scope="module")
def file(tmp_path_factory, tiny_clip_folder: Path, tiny_language_folder: Path, saved: Path) -> Path:
    """A recipe of both stages on the same 12 conversations; stage 1 takes only conversations with an image."""
    folder = tmp_path_factory.mktemp("training")
    everything, images = write_conversations(folder)
    samples = json.loads(everything.read_text())
    (folder / "with_images.json").write_text(json.dumps([sample for sample in samples if "image" in sample]))
    part: dict[str, Any] = {"images": str(images), "save_every": 2}
    part |= {"batch_size": 4, "per_device_batch_size": 2}
    fields = {
        "vision": str(tiny_clip_folder),
        "language_model": str(tiny_language_folder),
        "precision": "fp32",
        "stage1": part | {"json": str(folder / "with_images.json"), "lr": 1e-2},
        "stage2": part | {"json": str(everything), "lr": 1e-3, "start": str(saved)},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(fields))
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def read(file: Path) -> Read:
    return lambda *changes: read_vlm_recipe(file, changes)


@pytest.fixture(scope="module")
def first(read: Read, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of stage 1."""
    run = tmp_path_factory.mktemp("runs") / "first"
    train_stage(read("stage1.epochs=4"), 1, run)
    return run


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return what the Trainer logged at each step."""
    state = json.loads((checkpoints(run)[-1] / "trainer_state.json").read_text())
    return [record for record in state["log_history"] if "loss" in record]


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """Return the parts of the model whose weights changed."""
    assert before.keys() == after.keys()
    return {name.split(".")[1] for name in before if not torch.equal(before[name], after[name])}


def test_stage_1_trains_only_the_connector_and_logs_each_step(first: Path, saved: Path) -> None:
    assert changed(load_file(saved / "model.safetensors"), weights(first)) == {"multi_modal_projector"}
    records = metrics(first)
    assert [record["step"] for record in records] == list(range(1, 11))
    assert records[-1]["loss"] < records[0]["loss"]
    rates = [record["learning_rate"] for record in records]
    assert rates[0] == 0  # one step of warm-up, 3 % of 10
    assert rates[1] == max(rates) == 1e-2
    assert rates == [rates[0], *sorted(rates[1:], reverse=True)]
    resolved = read_vlm_recipe(first / "recipe.yaml")
    assert resolved.stage(1).epochs == 4
    assert resolved.stage2 is None
    assert [path.name for path in sorted(first.glob("checkpoint-*"))] == ["checkpoint-10", "checkpoint-8"]


def test_stage_2_trains_the_language_model_and_a_stopped_or_killed_run_resumes_to_its_weights(
    first: Path, read: Read, tmp_path: Path
) -> None:
    changes = f"stage2.start={first}", "stage2.epochs=2"
    recipe, run = read(*changes), tmp_path / "stopped"
    assert train_stage(recipe, 2, tmp_path / "second") == 6
    parts = {"multi_modal_projector", "language_model"}
    assert changed(weights(first), weights(tmp_path / "second")) == parts
    model, _ = load_vlm(tmp_path / "second")
    assert model.lm_head.weight is model.get_input_embeddings().weight
    with stopped_after_a_save():
        train_stage(recipe, 2, run)
    assert checkpoints(run)[-1] == run / "checkpoint-3"
    with pytest.raises(InputError, match="add --resume"):
        train_stage(recipe, 2, run)
    with pytest.raises(InputError, match=r"was started with stage2\.json="):
        train_stage(read(*changes, "stage2.json=other.json"), 2, run, resume=True)
    # a kill cuts a checkpoint off
    for name in ("checkpoint-98", "checkpoint-99"):
        (run / name).mkdir()
    (run / "checkpoint-98" / "trainer_state.json").write_text("")
    assert train_stage(recipe, 2, run, resume=True) == 6
    assert not list(run.glob("checkpoint-9*"))
    assert [record["step"] for record in metrics(run)] == list(range(1, 7))
    assert not changed(weights(tmp_path / "second"), weights(run))


def test_training_is_the_same_with_any_micro_batch_size(read: Read, tmp_path: Path) -> None:
    """Each answer token of the batch has the same weight, for any micro-batch size, with checkpointing or without."""
    variants = {
        "whole": ["stage2.per_device_batch_size=4"],
        "single": ["stage2.per_device_batch_size=1", "gradient_checkpointing=true"],
    }
    for name, changes in variants.items():
        train_stage(read(*changes, "stage2.save_every=100"), 2, tmp_path / name)
    losses = [[record["loss"] for record in metrics(tmp_path / name)] for name in variants]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    whole, single = (weights(tmp_path / name) for name in variants)
    torch.testing.assert_close(whole, single, rtol=1e-5, atol=2e-4)


def test_finished_or_taken_run_folders_are_not_trained_in(first: Path, read: Read, tmp_path: Path) -> None:
    recipe = read("stage1.epochs=4")
    command = ("vlm", "train", "--stage", "1", first / "recipe.yaml", "--run", first, "--resume")
    output, _ = in_process.call(*command)
    assert output == f"{first} is finished: its model is {first / 'model'}\n"
    with pytest.raises(InputError, match="holds a run already"):
        train_stage(recipe, 1, first)
    with pytest.raises(InputError, match=r"was started with stage1.lr=0.01, not 0.5"):
        train_stage(read("stage1.epochs=4", "stage1.lr=0.5"), 1, first, resume=True)
    with pytest.raises(InputError, match=r"was started with stage1="):
        train_stage(recipe, 2, first, resume=True)
    (tmp_path / "letter.txt").write_text("Dear")
    for resume in (False, True):
        with pytest.raises(InputError, match="holds other files"):
            train_stage(read(), 1, tmp_path, resume)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_train_errors_are_one_line(read: Read, tmp_path: Path, file: Path, first: Path) -> None:
    def error_of(stage: int, *changes: str, run: str = "run") -> str:
        with pytest.raises(DiffCLIPError) as caught:
            train_stage(read(*changes), stage, tmp_path / run)
        assert not (tmp_path / "run").exists()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "was trained with vision=" in error_of(2, "vision=elsewhere", f"stage2.start={first}")
    assert "stage2.start is missing" in error_of(2, "stage2.start=null")
    message = "batch_size 5 does not divide by per_device_batch_size 2 × 1 processes"
    assert message in error_of(1, "stage1.batch_size=5")
    assert "cannot read nowhere.json" in error_of(1, "stage1.json=nowhere.json")
    shutil.copytree(file.parent / "images", tmp_path / "images")
    (tmp_path / "images" / "3.png").write_bytes(b"no image")
    assert "3.png" in error_of(1, f"stage1.images={tmp_path / 'images'}", "workers=1", run="broken")
    assert "step 2: " in error_of(1, "stage1.lr=1e38", "stage1.warmup_ratio=0", run="far")
    # a run that ended before its first checkpoint can be restarted, here with other images
    (tmp_path / "broken" / ".0123abcd.tmp").touch()  # from a process killed while it wrote its recipe
    check_run(read().only(1), tmp_path / "broken", resume=False)
    assert train_stage(read(), 1, tmp_path / "broken", resume=True) == 3
    assert read_vlm_recipe(tmp_path / "broken" / "recipe.yaml").stage(1).images == str(file.parent / "images")


def test_a_full_disk_is_an_input_error(read: Read, tmp_path: Path, file_limit: Callable[[int], None]) -> None:
    file_limit(50_000)
    with pytest.raises(InputError, match=r"cannot write|no space left"):
        train_stage(read(), 1, tmp_path / "run")
    assert not checkpoints(tmp_path / "run")


@pytest.mark.slow
def test_two_processes_train_like_one_process(file: Path, read: Read, tmp_path: Path) -> None:
    """Train with torchrun; some passes of some processes have no image."""
    alone, both = tmp_path / "alone", tmp_path / "both"
    train_stage(read(), 2, alone)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    train = ["-m", "diffclip.cli", "--", "vlm", "train", "--stage", "2", str(file), "--run", str(both)]
    train.append("stage2.per_device_batch_size=1")
    done = subprocess.run([*torchrun, *train], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3 steps; the model is") == 1
    torch.testing.assert_close(weights(alone), weights(both), rtol=1e-5, atol=2e-4)


def test_recipes_have_llavas_defaults_and_reload_as_written(read: Read, file: Path, tmp_path: Path) -> None:
    recipe = read()
    assert (recipe.max_length, recipe.seed) == (2048, 0)
    assert (recipe.stage(1).warmup_ratio, recipe.stage(1).weight_decay) == (0.03, 0.0)
    (tmp_path / "again.yaml").write_text(recipe.only(1).to_yaml())
    assert read_vlm_recipe(tmp_path / "again.yaml") == recipe.only(1)
    (tmp_path / "over.yaml").write_text(f"base: {file}\nmax_length: 99\nstage1: {{lr: 5.0e-4}}\n")
    over = read_vlm_recipe(tmp_path / "over.yaml", ["seed=3"])
    assert (over.max_length, over.seed) == (99, 3)
    assert (over.stage(1).lr, over.stage(1).batch_size) == (5e-4, 4)


def test_wrong_recipes_are_input_errors(read: Read) -> None:
    for change, message in (
        ("vison=x", "unknown recipe key 'vison': did you mean 'vision'"),
        ("stage1.start=runs/x", "only stage 2 starts from a model"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            read(change)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="the recipe has no stage2: choose --stage 1"):
        read().only(1).stage(2)
    with pytest.raises(InputError, match="is a recipe of `diffclip train`"):
        read_vlm_recipe("cc12m_vitb16")


@pytest.mark.parametrize(("stage", "lr"), [(1, 1e-3), (2, 2e-5)])
def test_the_papers_recipes_have_the_papers_settings(stage: int, lr: float) -> None:
    recipe = read_vlm_recipe(f"vlm_qwen05b_stage{stage}")
    part = recipe.stage(stage)
    assert recipe.language_model == "Qwen/Qwen2.5-0.5B-Instruct"
    assert (part.batch_size, part.epochs, part.weight_decay, part.lr) == (192, 1, 0, lr)


PARTS = (
    *("scenes", "conversations", "questions about colours", "questions about kinds", "language model"),
    *(f"{model}-s0{part}" for model in ("CLIP", "DiffCLIP") for part in ("-stage1", "-stage2")),
)


@pytest.mark.slow(minutes=1)
def test_the_demo_makes_and_evaluates_everything_once(tmp_path: Path) -> None:
    settings = DemoSettings(
        *(64, 16, 12, 6, 24, 1),
        language_steps=2,
        tower=["epochs=1", "batch_size=32", "warmup_epochs=0"],
        recipe=[f"stage{part}.{key}=8" for part in (1, 2) for key in ("batch_size", "per_device_batch_size")],
    )
    folder = tmp_path / "runs: 2026"  # any folder name works
    first: list[str] = []
    page, _ = run_vlm_demo(folder, [0], first.append, show_progress, settings)
    assert "POPE" in page.read_text()
    records = read_records(folder / "pope.jsonl")
    accuracies = [record for record in records if record.metric == "accuracy" and record.split == "random"]
    # two models, two sets of questions, with the images and without
    assert len(accuracies) == 8
    assert {record.dataset for record in accuracies} == {"scenes-kinds", "scenes-colours"}
    assert {record.count for record in accuracies if record.dataset == "scenes-kinds"} == {36}
    assert not [line for line in first if "reusing" in line]

    second: list[str] = []
    run_vlm_demo(folder, [0], second.append, show_progress, settings)
    assert [line.split(":")[0] for line in second if "reusing" in line] == list(PARTS)
    assert read_records(folder / "pope.jsonl") == records
