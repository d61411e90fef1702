"""Whole runs: what they leave, that they repeat and resume exactly, and how they stop."""

from __future__ import annotations

import json
import math
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from zeroed_pictures import zero_pictures

import diffclip
from diffclip import InputError
from diffclip.data.loader import CaptionLoader
from diffclip.data.shards import Shards, expand_shards
from diffclip.errors import DivergedError, Fault
from diffclip.model import CLIP
from diffclip.training import run as runner
from diffclip.training.checkpoint import read_state
from diffclip.training.recipe import Recipe, parse_recipe
from diffclip.training.run import open_training_data


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


# what a clock decides
TIMES = ("samples_per_second", "data_wait", "time", "seconds_left")


def without_times(file: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines(file)]


def changed(recipe: Recipe, **keys: Any) -> Recipe:
    fields = recipe.model_dump()
    fields["data"] |= keys.pop("data", {})
    return parse_recipe(fields | keys, "test")


@pytest.fixture(scope="module")
def finished(fields: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny recipe."""
    run = tmp_path_factory.mktemp("run") / "a"
    runner.train(parse_recipe(fields, "test"), run)
    return run


def test_a_run_leaves_everything(finished: Path, recipe: Recipe) -> None:
    assert {"recipe.yaml", "metrics.jsonl", "validation.jsonl", "checkpoints", "tensorboard"} <= {
        path.name for path in finished.iterdir()
    }
    records = lines(finished / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, 16))
    assert [record["epoch"] for record in records] == [1] * 5 + [2] * 5 + [3] * 5
    for record in records:
        assert record.keys() == {
            "step",
            "epoch",
            "samples",
            "loss",
            "accuracy",
            "lr",
            "logit_scale",
            "grad_norm",
            "samples_per_second",
            "data_wait",
            "lambda",
            "time",
            "seconds_left",
        }
        assert {tower: len(values) for tower, values in record["lambda"].items()} == {"visual": 2, "text": 2}
        assert 0 <= record["data_wait"] <= 1
        assert 0 <= record["accuracy"] <= 1
    assert records[0]["logit_scale"] == pytest.approx(1 / 0.07, rel=1e-5)
    assert records[-1]["lr"] == pytest.approx(recipe.lr_end)
    assert len(list((finished / "tensorboard").iterdir())) == 1
    validations = lines(finished / "validation.jsonl")
    assert [v["epoch"] for v in validations] == [1, 2, 3]
    assert (validations[0]["pictures"], validations[0]["captions"]) == (12, 60)
    for validation in validations:
        correlation = validation["map_correlation"]
        assert {tower: len(layers) for tower, layers in correlation.items()} == {"visual": 2, "text": 2}
        assert all(-1 <= one <= 1 for layers in correlation.values() for one in layers)


def test_training_lowers_the_loss(recipe: Recipe, tmp_path: Path) -> None:
    # a model that tells nothing apart has a loss of ln 8 in batches of 8
    recipe = changed(
        recipe, epochs=40, lr=2e-3, checkpoint_every=1000, data={"scale": (0.9, 1.0), "val": None}
    )
    runner.train(recipe, tmp_path / "run")
    losses = [record["loss"] for record in lines(tmp_path / "run" / "metrics.jsonl")]
    assert sum(losses[-10:]) / 10 < 0.8 * math.log(8)
    assert not (tmp_path / "run" / "validation.jsonl").exists()
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()


def test_checkpoints_are_saved_models_and_best_is_by_validation(finished: Path) -> None:
    checkpoints = finished / "checkpoints"
    scores = [v["score"] for v in lines(finished / "validation.jsonl")]
    best_step = 5 * (1 + scores.index(max(scores)))
    assert (checkpoints / "last").readlink() == Path("step_00000015")
    assert (checkpoints / "best").readlink() == Path(f"step_{best_step:08d}")
    kept = {path.name for path in checkpoints.iterdir()}
    assert kept == {"last", "best", "previous", "step_00000010", "step_00000015", f"step_{best_step:08d}"}
    model, preprocess, tokenizer = diffclip.load(checkpoints / "last")
    assert preprocess.image_size == 32
    assert tokenizer("x").shape == (1, 24)
    assert model.logit_scale.item() != pytest.approx(2.6593, abs=1e-6)


def test_the_same_recipe_gives_the_same_numbers(finished: Path, recipe: Recipe, tmp_path: Path) -> None:
    runner.train(recipe, tmp_path / "b")
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(tmp_path / "b" / name) == without_times(finished / name)


def test_another_model_sees_the_same_data_in_the_same_order(recipe: Recipe) -> None:
    orders = []
    for model in ("CLIP", "DiffCLIP"):
        loader = open_training_data(changed(recipe, model=model))
        orders.append(
            [(batch.keys, batch.images.sum().item(), batch.tokens.sum().item()) for batch in loader.epoch(1)]
        )
    assert orders[0] == orders[1]


class KilledError(Exception):
    pass


@pytest.mark.parametrize(("at", "checkpoint_every", "drop_path"), [(7, None, 0.0), (12, 3, 0.3)])
def test_a_resumed_run_has_the_numbers_of_one_never_stopped(
    at: int, checkpoint_every: int | None, drop_path: float, recipe: Recipe, tmp_path: Path, monkeypatch
) -> None:
    architecture = recipe.architecture | {"vision": recipe.architecture["vision"] | {"drop_path": drop_path}}
    recipe = changed(recipe, architecture=architecture, checkpoint_every=checkpoint_every)
    runner.train(recipe, tmp_path / "whole")

    step = torch.optim.AdamW.step
    calls = iter(range(1, 1000))

    def step_or_die(self: torch.optim.AdamW, *arguments: Any) -> Any:
        if next(calls) == at:
            raise KilledError
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", step_or_die)
        with pytest.raises(KilledError):
            runner.train(recipe, tmp_path / "cut")
    assert read_state(tmp_path / "cut" / "checkpoints" / "last").step >= max(
        range(0, at, checkpoint_every or 5)
    )
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "los')
    torch.manual_seed(123)
    runner.train(recipe, tmp_path / "cut", resume=True)
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(tmp_path / "cut" / name) == without_times(tmp_path / "whole" / name)
    whole, cut = (diffclip.load(tmp_path / name / "checkpoints" / "last")[0] for name in ("whole", "cut"))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), cut.parameters(), strict=True))


def test_folders_are_not_overwritten_nor_resumed_with_another_recipe(
    finished: Path, recipe: Recipe, tmp_path
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(finished, run, symlinks=True)
    with pytest.raises(InputError, match="holds a run already: add --resume"):
        runner.train(recipe, run)
    with pytest.raises(InputError, match=r"was started with lr=0\.001, not 0\.002"):
        runner.train(changed(recipe, lr=2e-3), run, resume=True)
    before = (run / "metrics.jsonl").read_text()
    outcome = runner.train(changed(recipe, checkpoint_every=4), run, resume=True)
    assert outcome.progress.step == 15
    assert (run / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize(("where", "step"), [("gradient", 8), ("loss", 1)])
def test_a_step_that_is_not_finite_stops_the_run(
    where: str, step: int, recipe: Recipe, tmp_path: Path, monkeypatch
) -> None:
    forward, calls, run = CLIP.forward, iter(range(1, 1000)), tmp_path / "run"

    def spoiled(self: CLIP, images: torch.Tensor, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        out = forward(self, images, tokens)
        if next(calls) == step:
            if where == "loss":
                out["logit_scale"] = out["logit_scale"] * float("nan")
            else:
                out["image_features"].register_hook(lambda gradient: gradient * float("inf"))
        return out

    monkeypatch.setattr(CLIP, "forward", spoiled)
    with pytest.raises(DivergedError, match=rf"step {step}: .*: start again with a lower lr") as error:
        runner.train(recipe, run)
    assert not isinstance(error.value, InputError)
    assert "\n" not in str(error.value)
    again = pickle.loads(pickle.dumps(error.value))  # as another process gets it
    assert (str(again), again.step) == (str(error.value), step)
    monkeypatch.undo()
    assert runner.train(recipe, run, resume=True).progress.step == 15


def test_embeddings_that_are_not_finite_stop_the_run(recipe: Recipe, tmp_path: Path, monkeypatch) -> None:
    validate, calls = runner.validate, iter(range(1, 1000))

    def spoiled(fabric: Any, model: CLIP, *more: Any) -> Any:
        if next(calls) == 2:
            with torch.no_grad():
                model.image_projection.fill_(math.inf)
        return validate(fabric, model, *more)

    monkeypatch.setattr(runner, "validate", spoiled)
    run = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"step 10: embeddings .* not finite") as error:
        runner.train(recipe, run)
    assert error.value.step == 10
    assert read_state(run / "checkpoints" / "last").step == 5


def test_of_a_damaged_checkpoint_the_one_before_is_taken(
    finished: Path, recipe: Recipe, tmp_path: Path, capsys
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(finished, run, symlinks=True)
    checkpoints = run / "checkpoints"
    weights = checkpoints / "last" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    outcome = runner.train(recipe, run, resume=True)
    told = capsys.readouterr().err
    assert "step_00000015 is damaged (model.safetensors is cut off: 1000 of" in told
    assert "going on from step_00000010" in told
    assert outcome.progress.step == 15
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(run / name) == without_times(finished / name)


def test_a_run_whose_checkpoints_are_all_damaged_is_an_error(
    finished: Path, recipe: Recipe, tmp_path: Path
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(finished, run, symlinks=True)
    for folder in (run / "checkpoints").glob("step_*"):
        (folder / "training.json").unlink()
    with pytest.raises(InputError, match=r"training\.json is missing.*start a new run") as error:
        runner.train(recipe, run, resume=True)
    assert "\n" not in str(error.value)
    assert (run / "checkpoints" / "step_00000015").is_dir()


def test_a_run_stopped_before_its_first_checkpoint_starts_again(
    finished: Path, recipe: Recipe, tmp_path: Path
) -> None:
    for resume in (False, True):
        run = tmp_path / str(resume)
        run.mkdir()
        shutil.copy(finished / "recipe.yaml", run)
        assert runner.train(recipe, run, resume=resume).progress.step == 15
        assert without_times(run / "metrics.jsonl") == without_times(finished / "metrics.jsonl")


def test_a_folder_with_other_files_is_not_taken(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        runner.train(recipe, tmp_path)
    assert (tmp_path / "recipe.yaml").read_text() == "mine"


def last_batch_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fifth batch of each epoch holds nothing but a fault."""
    batches = CaptionLoader.epoch

    def epoch(self: Any, epoch: int, start_batch: int = 0) -> Any:
        for index, batch in enumerate(batches(self, epoch, start_batch), start_batch):
            if index == 4:
                fault = Fault("a sample", "is broken")
                batch = type(batch)(batch.images[:0], batch.tokens[:0], [], [fault])
            yield batch

    monkeypatch.setattr(CaptionLoader, "epoch", epoch)


def test_progress_after_a_last_broken_batch_is_kept(
    recipe: Recipe, scenes: Path, tmp_path: Path, monkeypatch
) -> None:
    last_batch_is_broken(monkeypatch)
    outcome = runner.train(changed(recipe, checkpoint_every=1), tmp_path / "run")
    assert outcome.progress.step == 12
    assert read_state(tmp_path / "run" / "checkpoints" / "last") == outcome.progress
    assert outcome.progress.epoch == 3


def test_broken_samples_are_skipped_counted_and_named(recipe: Recipe, scenes: Path, tmp_path: Path) -> None:
    train = zeroed(scenes / "train", tmp_path / "train", [3])
    outcome = runner.train(changed(recipe, data={"train": str(train)}), tmp_path / "run")
    shards = Shards([train / "0.tar"])
    assert list(outcome.skipped) == [shards.name(3)]
    assert outcome.progress.samples == 3 * 39
    assert outcome.progress.step == 15


@pytest.mark.parametrize(
    ("data", "words"), [({"train": "nowhere/{0..3}.tar"}, "nowhere/0.tar"), ({"val": "nowhere"}, "nowhere")]
)
def test_missing_data_is_named_before_anything_is_written(
    data: dict[str, str], words: str, recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        runner.train(changed(recipe, data=data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bf16_follows_the_same_curve(finished: Path, recipe: Recipe, tmp_path: Path) -> None:
    runner.train(changed(recipe, precision="bf16"), tmp_path / "run")
    exact = [record["loss"] for record in lines(finished / "metrics.jsonl")]
    rounded = [record["loss"] for record in lines(tmp_path / "run" / "metrics.jsonl")]
    assert rounded == pytest.approx(exact, rel=0.05)
    assert rounded != exact
    state = diffclip.load(tmp_path / "run" / "checkpoints" / "last")[0].state_dict()
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}


def test_the_logit_scale_never_passes_100(recipe: Recipe, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("diffclip.initialisation.LOGIT_SCALE_START", 4.7)
    runner.train(changed(recipe, epochs=1, data={"val": None}), tmp_path / "run")
    scales = [record["logit_scale"] for record in lines(tmp_path / "run" / "metrics.jsonl")]
    assert scales[0] > 100
    assert all(scale <= 100.001 for scale in scales[1:])


def test_clipping_bounds_the_step_but_not_what_is_told(recipe: Recipe, tmp_path: Path) -> None:
    runner.train(changed(recipe, epochs=1, clip_grad_norm=1e-3, data={"val": None}), tmp_path / "run")
    assert all(record["grad_norm"] > 1e-3 for record in lines(tmp_path / "run" / "metrics.jsonl"))


def test_the_sigmoid_loss_trains_and_its_bias_is_saved(recipe: Recipe, tmp_path: Path) -> None:
    run = tmp_path / "run"
    runner.train(changed(recipe, loss="siglip", epochs=4, lr=4e-3, data={"val": None}), run)
    records = lines(run / "metrics.jsonl")
    assert records[0]["logit_scale"] == pytest.approx(10, rel=1e-3)
    assert records[-1]["loss"] < records[0]["loss"]
    model, _, _ = diffclip.load(run / "checkpoints" / "last")
    assert model.config.logit_bias
    assert model.logit_bias.item() != -10


def test_a_saved_model_is_a_start(finished: Path, recipe: Recipe, tmp_path: Path) -> None:
    saved = finished / "checkpoints" / "last"
    tuned = changed(recipe, weights=str(saved), lr=1e-9, lr_start=0, lr_end=0, epochs=1, image_size=48)
    runner.train(tuned, tmp_path / "run")
    before, after = diffclip.load(saved)[0], diffclip.load(tmp_path / "run" / "checkpoints" / "last")[0]
    assert after.config.vision.image_size == 48
    assert torch.allclose(before.token_embedding.weight, after.token_embedding.weight, atol=1e-6)
    with pytest.raises(InputError, match="holds weights for another model than CLIP"):
        runner.train(changed(recipe, weights=str(saved), model="CLIP"), tmp_path / "other")
    with pytest.raises(InputError, match=r"choose the data\.statistics it had"):
        openai = {"statistics": "openai"}
        runner.train(changed(recipe, weights=str(saved), data=openai), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_run_does_not_go_on_with_other_shards(
    finished: Path, recipe: Recipe, scenes: Path, tmp_path: Path
) -> None:
    train = tmp_path / "train"
    shutil.copytree(scenes / "train", train)
    here = changed(recipe, data={"train": str(train)}, epochs=1)
    runner.train(here, tmp_path / "run")
    shutil.copy(next(train.glob("*.tar")), train / "more.tar")
    with pytest.raises(InputError, match=r"shards are not those that its checkpoint saw.*weights=") as error:
        runner.train(changed(here, epochs=2), tmp_path / "run", resume=True)
    assert "\n" not in str(error.value)
    (train / "more.tar").unlink()
    assert runner.train(changed(here, epochs=2), tmp_path / "run", resume=True).progress.step == 10


def zeroed(shards: Path, folder: Path, broken: Any) -> Path:
    """The only shard of a folder, with zeros for the pictures of the samples `broken`."""
    [shard] = expand_shards(str(shards))
    return zero_pictures(shard, folder / "0.tar", broken).parent


def test_nothing_but_broken_samples_is_an_error(recipe: Recipe, scenes: Path, tmp_path: Path) -> None:
    train = zeroed(scenes / "train", tmp_path / "train", range(40))
    with pytest.raises(InputError, match=r"every sample in .* is broken \(first: ") as error:
        runner.train(changed(recipe, data={"train": str(train)}), tmp_path / "run")
    assert "\n" not in str(error.value)


def test_broken_validation_pictures_are_told_and_not_counted(
    recipe: Recipe, scenes: Path, tmp_path: Path
) -> None:
    val = zeroed(scenes / "val", tmp_path / "val", (2, 5, 6))
    outcome = runner.train(changed(recipe, epochs=2, data={"val": str(val)}), tmp_path / "run")
    assert [line["pictures"] for line in lines(tmp_path / "run" / "validation.jsonl")] == [9, 9]
    assert [line["captions"] for line in lines(tmp_path / "run" / "validation.jsonl")] == [45, 45]
    assert len(outcome.skipped) == 3
    assert all(str(val) in name for name in outcome.skipped)


def test_an_error_in_validation_loses_no_step(
    recipe: Recipe, scenes: Path, tmp_path: Path, monkeypatch
) -> None:
    val = zeroed(scenes / "val", tmp_path / "val", range(12))
    with pytest.raises(InputError, match="every image in"):
        runner.train(changed(recipe, data={"val": str(val)}), tmp_path / "run")
    assert read_state(tmp_path / "run" / "checkpoints" / "last").step == 5


def test_data_that_has_moved_is_found_at_its_new_place(recipe: Recipe, scenes: Path, tmp_path: Path) -> None:
    runner.train(changed(recipe, epochs=1), tmp_path / "run")
    shutil.copytree(scenes, tmp_path / "moved")
    moved = {"train": str(tmp_path / "moved" / "train"), "val": str(tmp_path / "moved" / "val")}
    outcome = runner.train(changed(recipe, epochs=2, data=moved), tmp_path / "run", resume=True)
    assert outcome.progress.step == 10


def test_more_epochs_extend_a_run_and_fewer_are_refused(
    finished: Path, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(finished, run, symlinks=True)
    assert runner.train(changed(recipe, epochs=4), run, resume=True).progress.step == 20
    assert "going on after step 15 of 20" in capsys.readouterr().err
    assert [record["step"] for record in lines(run / "metrics.jsonl")] == list(range(1, 21))
    assert "epochs: 4\n" in (run / "recipe.yaml").read_text()
    with pytest.raises(InputError, match="was started with epochs=4, not 3"):
        runner.train(recipe, run, resume=True)
    assert runner.train(changed(recipe, epochs=4), run, resume=True).progress.step == 20
    assert "the run is finished after step 20" in capsys.readouterr().err


@pytest.mark.parametrize("lost", ["link", "target"])
def test_a_run_without_its_links_is_not_overwritten(
    lost: str, finished: Path, recipe: Recipe, tmp_path: Path
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(finished, run, symlinks=True)
    (run / "checkpoints" / "last").unlink()
    if lost == "target":
        (run / "checkpoints" / "last").symlink_to("step_99999999")
    with pytest.raises(InputError, match="holds a run already"):
        runner.train(recipe, run)
    assert runner.train(recipe, run, resume=True).progress.step == 15
    assert without_times(run / "metrics.jsonl") == without_times(finished / "metrics.jsonl")


def test_two_processes_do_not_train_in_one_folder(recipe: Recipe, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    code = (
        "import sys, time; from pathlib import Path; from diffclip.training.run_folder import lock_folder; "
        "held = lock_folder(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match=f"process {holder.pid} on .* trains in .*choose another --run"):
            runner.train(recipe, run)
        assert {path.name for path in run.iterdir()} == {".lock"}
    finally:
        holder.kill()
        holder.wait()
    assert runner.train(recipe, run).progress.step == 15


def test_a_resumed_run_does_not_need_the_weights_it_started_from(
    finished: Path, recipe: Recipe, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    shutil.copytree(finished, start, symlinks=True)
    # a run's folder stands for its best checkpoint
    tuned = changed(recipe, weights=str(start), epochs=2, checkpoint_every=3)
    runner.train(tuned, tmp_path / "run")
    shutil.rmtree(start)
    assert runner.train(tuned, tmp_path / "run", resume=True).progress.step == 10
