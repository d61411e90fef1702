"""Whole runs: their files, exact repeats and resumes, how they stop, and the weights that they start from."""

import errno
import json
import math
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from made_sets import EVERY, tar_of
from optimizer_steps import KilledError, before_step, die
from tiny_recipe import changed
from zeroed_images import zero_images

import diffclip
from diffclip import CLIP, InputError
from diffclip.config import variant_config
from diffclip.data import loader
from diffclip.data.loader import CaptionLoader
from diffclip.data.tar_set import TarSet
from diffclip.errors import DiffCLIPError, DivergedError, Fault, StoppedError
from diffclip.sources.conversion import to_differential
from diffclip.training import run as runner
from diffclip.training.checkpoint import read_state
from diffclip.training.launch import Hardware
from diffclip.training.recipe import Recipe, parse_recipe, read_recipe
from diffclip.training.run_folder import lock_folder, read_lines, read_starts
from diffclip.training.stopping import StopRequest
from diffclip.weights import save_weights

# values that depend on the clock
TIMES = ("samples_per_second", "data_wait", "time", "seconds_left")


def without_times(file: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in TIMES} for line in read_lines(file)]


@pytest.fixture(scope="module")
def finished(fields: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny recipe."""
    run = tmp_path_factory.mktemp("run") / "a"
    runner.train(parse_recipe(fields, "test"), run)
    return run


def test_a_finished_run_has_all_its_files_and_metrics(finished: Path, recipe: Recipe) -> None:
    for name in ("recipe.yaml", "metrics.jsonl", "validation.jsonl", "checkpoints"):
        assert (finished / name).exists()
    records = read_lines(finished / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, 16))
    assert [record["epoch"] for record in records] == [1] * 5 + [2] * 5 + [3] * 5
    last = records[-1]
    assert last.keys() == {
        *("step", "epoch", "samples", "loss", "accuracy", "lr", "logit_scale", "grad_norm"),
        *("samples_per_second", "data_wait", "lambda", "time", "seconds_left"),
    }
    assert {tower: len(values) for tower, values in last["lambda"].items()} == {"visual": 2, "text": 2}
    assert all(0 <= record[key] <= 1 for record in records for key in ("data_wait", "accuracy"))
    assert records[0]["logit_scale"] == pytest.approx(1 / 0.07, rel=1e-5)
    assert records[-1]["lr"] == pytest.approx(recipe.lr_end)
    validations = read_lines(finished / "validation.jsonl")
    assert [v["epoch"] for v in validations] == [1, 2, 3]
    assert (validations[0]["images"], validations[0]["captions"]) == (12, 60)
    correlation = validations[-1]["map_correlation"]
    assert {tower: len(layers) for tower, layers in correlation.items()} == {"visual": 2, "text": 2}
    assert all(-1 <= value <= 1 for layers in correlation.values() for value in layers)


def test_training_lowers_the_loss(recipe: Recipe, scenes: Path, tmp_path: Path) -> None:
    # twelve images; a model that cannot tell samples apart has a loss of ln 8 in batches of 8
    data = {"train": str(scenes / "val"), "scale": (0.9, 1.0), "val": None, "memory": True}
    recipe = changed(recipe, epochs=80, init="published", checkpoint_every=1000, data=data)
    runner.train(recipe, tmp_path / "run")
    losses = [record["loss"] for record in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert sum(losses[-10:]) / 10 < 0.8 * math.log(8)
    assert not (tmp_path / "run" / "validation.jsonl").exists()
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()


def test_checkpoints_load_and_best_has_the_top_validation_score(finished: Path) -> None:
    checkpoints = finished / "checkpoints"
    scores = [v["score"] for v in read_lines(finished / "validation.jsonl")]
    best_step = 5 * (1 + scores.index(max(scores)))
    assert (checkpoints / "last").readlink() == Path("step_00000015")
    assert (checkpoints / "best").readlink() == Path(f"step_{best_step:08d}")
    names = {path.name for path in checkpoints.iterdir()}
    assert names == {"last", "best", "previous", "step_00000010", "step_00000015", f"step_{best_step:08d}"}
    model, preprocess, tokenizer = diffclip.load(checkpoints / "last")
    assert preprocess.image_size == 32
    assert tokenizer("x").shape == (1, 24)
    assert model.logit_scale.item() != pytest.approx(2.6593, abs=1e-6)


def test_a_resumed_run_keeps_the_precision_that_auto_resolved_to(recipe, tmp_path, monkeypatch) -> None:
    recipe, run = changed(recipe, precision="auto", epochs=1, data={"val": None}), tmp_path / "run"
    for epochs, native in ((1, "fp32"), (2, "bf16")):  # on another machine the second time
        known = {"auto": native, "fp32": "fp32"}
        monkeypatch.setattr(runner, "native_precision", lambda given, _, known=known: known[given])
        runner.train(changed(recipe, epochs=epochs), run, resume=True)
        assert read_recipe(run / "recipe.yaml").precision == "fp32"
        assert read_recipe(run / "recipe.yaml").attention_backend == "eager"
        starts = json.loads((run / "about.json").read_text())["starts"]
        assert [start["processes"]["precision"] for start in starts] == ["fp32"] * epochs


def test_a_stopped_and_killed_run_resumes_to_identical_results(recipe, tmp_path) -> None:
    architecture = recipe.architecture | {"vision": recipe.architecture["vision"] | {"drop_path": 0.3}}
    recipe = changed(recipe, architecture=architecture, checkpoint_every=3)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    runner.train(recipe, whole)
    for number, step in ((signal.SIGTERM, 2), (signal.SIGINT, 4)):
        handler = signal.getsignal(number)
        with pytest.MonkeyPatch.context() as patch:
            before_step(patch, 2, lambda number=number: os.kill(os.getpid(), number))
            message = rf"asked to stop at step {step}, saved in .*go on with --resume"
            with pytest.raises(StoppedError, match=message) as error:
                runner.train(recipe, cut, resume=True)
        assert error.value.exit_code == 75
        assert signal.getsignal(number) == handler
        assert read_state(cut / "checkpoints" / "last").step == len(read_lines(cut / "metrics.jsonl")) == step
    with pytest.MonkeyPatch.context() as patch:
        before_step(patch, 5, die)
        with pytest.raises(KilledError):
            runner.train(recipe, cut, resume=True)
    assert read_state(cut / "checkpoints" / "last").step == 6
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "los')
    torch.manual_seed(123)
    runner.train(recipe, cut, resume=True)
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(cut / name) == without_times(whole / name)
    files = (run / "checkpoints" / "last" / "model.safetensors" for run in (whole, cut))
    assert next(files).read_bytes() == next(files).read_bytes()


def test_folders_are_not_overwritten_nor_resumed_with_another_recipe(finished, recipe, tmp_path) -> None:
    run = shutil.copytree(finished, tmp_path / "copy", symlinks=True)
    (run / "checkpoints" / "last").unlink()
    with pytest.raises(InputError, match="holds a run already: add --resume"):
        runner.train(recipe, run)
    with pytest.raises(InputError, match=r"was started with lr=0\.001, not 0\.002"):
        runner.train(changed(recipe, lr=2e-3), run, resume=True)
    before = (run / "metrics.jsonl").read_text()
    assert (
        runner.train(changed(recipe, checkpoint_every=4, log_every=5), run, resume=True).progress.step == 15
    )
    assert (run / "metrics.jsonl").read_text() == before
    shutil.rmtree(run / "checkpoints")
    (run / "about.json").unlink()
    (run / "recipe.yaml").write_text("language_model: tiny\n")  # as in a run of `diffclip vlm train`
    with pytest.raises(InputError, match="has a language model: use `diffclip vlm train`"):
        runner.train(recipe, run)
    assert (run / "metrics.jsonl").read_text() == before


READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__")


@pytest.mark.parametrize("loss", ["clip", "siglip"])
def test_nothing_is_read_from_the_device_between_two_records(loss, recipe, tmp_path, monkeypatch) -> None:
    recipe = changed(recipe, loss=loss, epochs=2, batch_size=2, log_every=10, data={"val": None})
    loop, reads = runner.Trainer.train_epoch, list[str]()

    def counted(self: Any, epoch: int) -> None:
        with monkeypatch.context() as patch:
            for name in READS:
                read = getattr(torch.Tensor, name)
                patch.setattr(
                    torch.Tensor,
                    name,
                    lambda *given, read=read, name=name: (reads.append(name), read(*given))[1],
                )
            patch.setattr("diffclip.data.loader._Batches.__getitem__", batches)
            loop(self, epoch)

    batch_of = loader._Batches.__getitem__

    def batches(self: Any, job: Any) -> Any:
        # what is read while a batch is made has never been on the device
        count, batch = len(reads), batch_of(self, job)
        del reads[count:]
        return batch

    monkeypatch.setattr(runner.Trainer, "train_epoch", counted)
    runner.train(recipe, tmp_path / "run")
    records = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 10, 20, 30, 40]
    assert [record["samples"] for record in records] == [2, 20, 40, 60, 80]
    assert reads.count("tolist") == 5
    assert len(reads) <= 0.2 * 40  # torch's DataLoader also draws a number for every epoch
    assert records[-1]["loss"] < records[0]["loss"]
    model = diffclip.load(tmp_path / "run")[0]
    accuracy, scale = ("image_accuracy", 10) if loss == "siglip" else ("accuracy", 1 / 0.07)
    assert all(0 <= record[accuracy] <= 1 for record in records)
    assert records[0]["logit_scale"] == pytest.approx(scale, rel=1e-3)
    assert loss == "clip" or model.logit_bias.item() != -10


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_nothing_waits_between_two_records(recipe: Recipe, tmp_path: Path, monkeypatch) -> None:
    log, finish = runner.Trainer._log, runner.Trainer.finish_epoch

    def unwatched(work: Any, then: str) -> Any:
        def call(*given: Any) -> None:
            torch.cuda.set_sync_debug_mode("default")
            work(*given)
            torch.cuda.set_sync_debug_mode(then)

        return call

    # from the first record on, since the first step prepares libraries
    monkeypatch.setattr(runner.Trainer, "_log", unwatched(log, "error"))
    monkeypatch.setattr(runner.Trainer, "finish_epoch", unwatched(finish, "default"))
    recipe = changed(recipe, log_every=4, data={"val": None, "workers": 1})
    try:
        runner.train(recipe, tmp_path / "run", hardware=Hardware(accelerator="cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [row["step"] for row in read_lines(tmp_path / "run" / "metrics.jsonl")] == [1, 4, 8, 12, 15]


@pytest.mark.parametrize(
    ("where", "step", "log_every", "words"),
    [
        ("gradient", 8, 1, "the loss is .* the gradient's norm"),
        ("loss", 3, 10, r"the loss is nan.* \(found after steps 2 to 5\)"),
        ("weight", 5, 10, "a weight is not finite"),
        ("validation", 5, 1, "embeddings of the validation split are not finite"),
    ],
)
def test_a_step_that_is_not_finite_stops_the_run(
    where, step, log_every, words, recipe, tmp_path, monkeypatch
) -> None:
    forward, validate, calls, run = CLIP.forward, runner.validate, iter(range(1, 1000)), tmp_path / "run"
    recipe = changed(
        recipe, epochs=2, log_every=log_every, data={} if where == "validation" else {"val": None}
    )

    def spoiled(self: CLIP, images: torch.Tensor, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        out = forward(self, images, tokens)
        if next(calls) == step:
            if where == "loss":
                out["logit_scale"] = out["logit_scale"] * float("nan")
            elif where == "weight":
                self.token_embedding.weight.data[1000] = math.nan  # of a token that no caption has
            else:
                out["image_features"].register_hook(lambda gradient: gradient * float("inf"))
        return out

    def spoiled_validation(fabric: Any, model: CLIP, *more: Any) -> Any:
        with torch.no_grad():
            model.image_projection.fill_(math.inf)
        return validate(fabric, model, *more)

    if where == "validation":
        monkeypatch.setattr(runner, "validate", spoiled_validation)
    else:
        monkeypatch.setattr(CLIP, "forward", spoiled)
    with pytest.raises(DivergedError, match=rf"step {step}: {words}.*: start again with a lower lr") as error:
        runner.train(recipe, run)
    assert not isinstance(error.value, InputError)
    assert "\n" not in str(error.value)
    copy = pickle.loads(pickle.dumps(error.value))  # as another process gets it
    assert (str(copy), copy.step) == (str(error.value), step)
    monkeypatch.undo()
    for checkpoint in (run / "checkpoints").glob("step_*"):
        state = diffclip.load(checkpoint)[0].state_dict()
        assert all(tensor.isfinite().all() for tensor in state.values())
    assert runner.train(recipe, run, resume=True).progress.step == 10


@pytest.mark.parametrize("broken", [2, 4])
def test_progress_is_kept_if_a_batch_is_broken(broken, recipe: Recipe, tmp_path: Path, monkeypatch) -> None:
    batches = CaptionLoader.epoch

    def epoch(self: Any, epoch: int, start_batch: int = 0) -> Any:
        for index, batch in enumerate(batches(self, epoch, start_batch), start_batch):
            if index == broken:
                fault = Fault("a sample", "is broken")
                batch = type(batch)(batch.images[:0], batch.tokens[:0], [], [], [fault])
            yield batch

    monkeypatch.setattr(CaptionLoader, "epoch", epoch)
    outcome = runner.train(changed(recipe, checkpoint_every=1, log_every=10), tmp_path / "run")
    assert (outcome.progress.step, outcome.progress.epoch) == (12, 3)
    assert read_state(tmp_path / "run" / "checkpoints" / "last") == outcome.progress
    assert read_starts(tmp_path / "run")[-1]["ended"]["how"] == "finished"
    steps = [record["step"] for record in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert steps == ([1, 10, 12] if broken == 2 else [1, 10])


def zeroed(shards: Path, folder: Path, broken: Iterable[int]) -> Path:
    """Copy the only shard of a folder, with zeros in place of the images of the samples `broken`."""
    [shard] = shards.glob("*.tar")
    return zero_images(shard, folder / "0.tar", broken).parent


def test_broken_samples_are_skipped_counted_and_named(recipe: Recipe, scenes: Path, tmp_path: Path) -> None:
    train = zeroed(scenes / "train", tmp_path / "train", [3])
    val = zeroed(scenes / "val", tmp_path / "val", (2, 5, 6))
    (val / "1.tar").write_bytes(b"no shard")
    # a shard with two faults: it is cut short and has a sample without an image
    cut = tar_of(train / "1.tar", [("a.txt", b"no image"), ("b.txt", b"cut")])
    os.truncate(cut, 1024 + 512 + 1)
    data = {"train": str(train), "val": str(val), "window": 1}
    outcome = runner.train(changed(recipe, epochs=2, data=data), tmp_path / "run")
    assert (outcome.progress.samples, outcome.progress.step) == (2 * 39, 10)
    train_shards, val_shards = (TarSet(folder / "0.tar", EVERY) for folder in (train, val))
    assert [fault.reason for fault in outcome.skipped if fault.name == str(cut)] == [
        "is cut short or broken at byte 1537 of 1537, 1 sample before it kept",
        "holds 1 sample without image or caption (the first has no image)",
    ]
    samples = {train_shards.name(3), *(val_shards.name(number) for number in (2, 5, 6))}
    assert {fault.name for fault in outcome.skipped} == {*samples, str(val / "1.tar"), str(cut)}
    assert len(outcome.skipped) == 7
    records = read_lines(tmp_path / "run" / "validation.jsonl")
    assert [(line["images"], line["captions"]) for line in records] == [(9, 45)] * 2


def test_a_dataset_of_only_broken_samples_is_an_error(recipe: Recipe, scenes: Path, tmp_path: Path) -> None:
    train = zeroed(scenes / "train", tmp_path / "train", range(40))
    with pytest.raises(InputError, match=r"every sample in .* is broken \(first: ") as error:
        runner.train(changed(recipe, data={"train": str(train)}), tmp_path / "run")
    assert "\n" not in str(error.value)


def test_an_error_in_validation_loses_no_step(recipe: Recipe, scenes: Path, tmp_path: Path) -> None:
    recipe, run = changed(recipe, epochs=1, data={"memory": True}), tmp_path / "run"
    val = zeroed(scenes / "val", tmp_path / "val", range(12))
    with pytest.raises(InputError, match="every image in"):
        runner.train(changed(recipe, data={"val": str(val)}), run)
    assert read_state(run / "checkpoints" / "last").step == 5
    outcome = runner.train(recipe, run, resume=True)  # resumes with the validation
    assert (outcome.progress.step, outcome.progress.epoch, outcome.progress.batch) == (5, 1, 0)
    assert [line["epoch"] for line in read_lines(run / "validation.jsonl")] == [1]
    assert read_state(run / "checkpoints" / "best") == outcome.progress


def test_out_of_gpu_memory_is_an_error_with_advice(recipe, tmp_path, monkeypatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("diffclip.training.loop.backward_in_parts", full)
    with pytest.raises(DiffCLIPError, match=r"the GPU's memory is too small: .*micro_batch=N"):
        runner.train(recipe, tmp_path / "full")


def test_bf16_follows_the_fp32_curve_and_the_validation_settings(
    finished: Path, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    recipe = changed(recipe, precision="bf16", validate_every=2, data={"val_range": [2, 8]})
    monkeypatch.setattr(runner, "has_bf16", lambda _: False)
    runner.train(recipe, tmp_path / "run")
    assert "this CPU has no instructions for bf16" in capsys.readouterr().err
    records = read_lines(tmp_path / "run" / "validation.jsonl")
    assert [(line["epoch"], line["images"]) for line in records] == [(2, 6), (3, 6)]
    exact = [record["loss"] for record in read_lines(finished / "metrics.jsonl")]
    rounded = [record["loss"] for record in read_lines(tmp_path / "run" / "metrics.jsonl")]
    assert rounded == pytest.approx(exact, rel=0.05)
    assert rounded != exact
    state = diffclip.load(tmp_path / "run" / "checkpoints" / "last")[0].state_dict()
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}


def test_logit_scale_is_capped_at_100_and_grad_norm_is_logged_unclipped(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffclip.initialisation.LOGIT_SCALE_START", 4.7)
    runner.train(changed(recipe, epochs=1, clip_grad_norm=1e-3, data={"val": None}), tmp_path / "run")
    records = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert records[0]["logit_scale"] > 100
    assert all(record["logit_scale"] <= 100.001 for record in records[1:])
    assert all(record["grad_norm"] > 1e-3 for record in records)


def test_training_can_start_from_a_saved_model(finished: Path, recipe: Recipe, tmp_path: Path) -> None:
    # a run folder stands for its best checkpoint
    saved = finished
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


def test_frozen_parts_keep_their_values_and_the_run_resumes(finished: Path, recipe: Recipe, tmp_path) -> None:
    frozen, run = ("visual.blocks.1.", "transformer.", "ln_final.", "token_embedding."), tmp_path / "run"
    recipe = changed(recipe, freeze=["visual.blocks[1:]", "text"], weights=str(finished), micro_batch=4)
    for epochs in (1, 2):
        runner.train(changed(recipe, epochs=epochs), run, resume=True)
    before, after = (
        diffclip.load(folder)[0].state_dict() for folder in (finished, run / "checkpoints" / "last")
    )
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert {name for name in before if name.startswith(frozen)} <= kept
    assert not [name for name in kept if name.startswith("visual.blocks.0.") and name.endswith("weight")]
    with pytest.raises(InputError, match=r"freeze: 'visual.blocks\[9\]' is no part of the model"):
        runner.train(changed(recipe, freeze=["visual.blocks[9]"]), tmp_path / "other")


def test_training_reads_data_from_a_read_only_folder(recipe, tmp_path, cache_home) -> None:
    data = tmp_path / "data"
    data.mkdir()
    [shard] = Path(str(recipe.data.train)).glob("*.tar")
    shutil.copy(shard, data)
    with pytest.raises(InputError, match="fewer than the batch size"):
        runner.train(changed(recipe, batch_size=1000, data={"train": str(data)}), tmp_path / "failed")
    assert sorted(tmp_path.iterdir()) == [data]  # a failed start leaves nothing behind
    assert [path.name for path in data.iterdir()] == [shard.name]
    (data / "diffclip-index").touch()  # in the way of an index, also for root
    run = changed(recipe, epochs=1, data={"train": str(data)})
    assert runner.train(run, tmp_path / "run").progress.step == 5
    assert list((cache_home / "diffclip" / "indexes").rglob("*.index"))


def test_resuming_allows_moved_shards_and_new_validation_but_no_new_shards(
    recipe: Recipe, scenes: Path, tmp_path: Path
) -> None:
    run, train = tmp_path / "run", shutil.copytree(scenes / "train", tmp_path / "train")
    data = {"train": {"shards": str(train)}}
    runner.train(changed(recipe, epochs=1, data=data), run)
    shutil.copy(next(train.glob("*.tar")), train / "more.tar")
    with pytest.raises(InputError, match=r"shards are not those that its checkpoint saw.*weights=") as error:
        runner.train(changed(recipe, epochs=2, data=data), run, resume=True)
    assert "\n" not in str(error.value)
    assert read_recipe(run / "recipe.yaml").epochs == 1  # the refused call left it as it was
    # retrieval among more images scores lower
    data = {"train": {"shards": str(scenes / "train")}, "val": str(scenes / "train")}
    assert runner.train(changed(recipe, epochs=2, data=data), run, resume=True).progress.step == 10
    before, now = read_lines(run / "validation.jsonl")
    assert before["score"] > now["score"]
    assert read_state(run / "checkpoints" / "best").step == 10


def test_a_run_on_a_file_system_without_links_and_permissions_resumes_and_is_evaluated(
    recipe: Recipe, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    for name in ("symlink", "link", "chmod", "fsync"):
        monkeypatch.setattr(os, name, refuse)
    run = tmp_path / "run"
    runner.train(changed(recipe, epochs=1, checkpoint_every=2), run)
    assert runner.train(changed(recipe, epochs=2, checkpoint_every=2), run, resume=True).progress.step == 10
    assert [record["step"] for record in read_lines(run / "metrics.jsonl")] == list(range(1, 11))
    assert not [path for path in run.rglob("*") if path.is_symlink()]
    assert (run / "checkpoints" / "last").read_text() == "step_00000010\n"
    for weights in (run, run / "checkpoints" / "last", run / "checkpoints" / "best"):
        records = diffclip.evaluate(str(weights), "retrieval", scenes, "val")
        assert records[0].count == 60


def test_more_epochs_extend_a_run_and_fewer_are_refused(finished, recipe, tmp_path, capsys) -> None:
    run = shutil.copytree(finished, tmp_path / "copy", symlinks=True)
    assert runner.train(changed(recipe, epochs=4), run, resume=True).progress.step == 20
    assert [record["step"] for record in read_lines(run / "metrics.jsonl")] == list(range(1, 21))
    with pytest.raises(InputError, match="was started with epochs=4, not 3"):
        runner.train(recipe, run, resume=True)
    assert runner.train(changed(recipe, epochs=4), run, resume=True).progress.step == 20
    assert "the run is finished after step 20" in capsys.readouterr().err
    for folder in (run / "checkpoints").glob("step_*"):
        (folder / "training.json").unlink()
    with pytest.raises(InputError, match=r"No such file .*training\.json.*start a new run") as error:
        runner.train(changed(recipe, epochs=5), run, resume=True)
    assert "\n" not in str(error.value)
    assert (run / "checkpoints" / "step_00000020").is_dir()
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(InputError, match="has lost its checkpoints"):
        runner.train(changed(recipe, epochs=5), run, resume=True)
    assert len(read_lines(run / "metrics.jsonl")) == 20


def hold(run: Path, sender: Connection) -> None:
    with lock_folder(run):
        sender.send("held")
        time.sleep(600)


def test_a_run_folder_is_locked_while_in_use_and_free_after_a_kill(recipe: Recipe, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    holder = fork.Process(target=hold, args=(run, sender))
    holder.start()
    try:
        assert receiver.recv() == "held"
        with pytest.raises(InputError, match=r"another process trains in .*choose another --run"):
            runner.train(recipe, run)
        assert {path.name for path in run.iterdir()} == {".lock"}
    finally:
        holder.kill()
        holder.join()
    (run / ".0123abcd.tmp").touch()  # from a process killed while it wrote its recipe
    assert runner.train(changed(recipe, epochs=1), run).progress.step == 5


def test_a_run_made_by_another_process_meanwhile_is_not_changed(
    finished: Path, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, build = tmp_path / "run", runner.build_model

    def slowly(recipe: Recipe) -> CLIP:
        shutil.copytree(finished, run, symlinks=True)
        return build(recipe)

    monkeypatch.setattr(runner, "build_model", slowly)
    with pytest.raises(InputError, match="was trained by another process meanwhile: go on with --resume"):
        runner.train(changed(recipe, lr=2e-3), run, resume=True)
    assert (run / "recipe.yaml").read_bytes() == (finished / "recipe.yaml").read_bytes()


@pytest.mark.slow
def test_a_compiled_run_has_the_loss_curve_of_an_uncompiled_run(
    finished: Path, recipe: Recipe, tmp_path: Path
) -> None:
    runner.train(changed(recipe, compile=True, micro_batch=4, data={"val": None}), tmp_path / "compiled")
    plain, compiled = (
        [row["loss"] for row in read_lines(run / "metrics.jsonl")]
        for run in (finished, tmp_path / "compiled")
    )
    assert compiled == pytest.approx(plain, rel=1e-4)


def test_a_stop_signal_before_the_first_step_is_reported(recipe, tmp_path, monkeypatch) -> None:
    recipe, run = changed(recipe, epochs=1), tmp_path / "run"
    for name, number in (("open_validation_data", signal.SIGINT), ("_open_logger", signal.SIGUSR1)):
        with monkeypatch.context() as patch:
            work = getattr(runner, name)
            patch.setattr(
                runner, name, lambda *given, do=work, n=number: (do(*given), os.kill(os.getpid(), n))[0]
            )
            message = "with nothing to save: run the command again with --resume"
            with pytest.raises(StoppedError, match=message) as error:
                runner.train(recipe, run, resume=True)
        assert error.value.exit_code == 75
    assert runner.train(recipe, run, resume=True).progress.step == 5


def test_a_signal_during_the_imports_stops_the_run(recipe_file: Path, tmp_path: Path) -> None:
    arguments = f"-m diffclip.cli train {recipe_file} --run {tmp_path / 'run'}".split()
    process = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, text=True)
    while not catches(process.pid, signal.SIGUSR1):  # the last signal to get its handler
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75
    assert (
        stderr == "diffclip: stopped by a signal, with nothing to save: run the command again with --resume\n"
    )


def catches(pid: int, number: int) -> bool:
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_stop_signal_is_not_lost_if_a_reader_catches_exceptions(tmp_path: Path) -> None:
    with StopRequest(tmp_path) as stop:
        with suppress(Exception):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked == signal.SIGTERM


def test_finetuning_learns_the_second_map_and_resumes_without_the_weights(fields, tmp_path) -> None:
    plain = CLIP(variant_config("CLIP", fields["architecture"]), seed=0)
    models = {"plain": plain, "added": to_differential(plain)}
    rest = {key: value for key, value in fields.items() if key != "architecture"}
    for name, model in models.items():
        save_weights(model, tmp_path / "start")
        start = {"model": "of-weights", "weights": str(tmp_path / "start"), "epochs": 1}
        recipe, run = parse_recipe(rest | start, "test"), tmp_path / name
        runner.train(recipe, run)
        shutil.rmtree(tmp_path / "start")
    resolved = read_recipe(run / "recipe.yaml")
    assert resolved == recipe.model_copy(update={"attention_backend": resolved.attention_backend})
    assert runner.train(changed(resolved, epochs=2), run, resume=True).progress.step == 10
    first, plain_first = (read_lines(tmp_path / name / "metrics.jsonl")[0] for name in ("added", "plain"))
    assert first["loss"] == pytest.approx(plain_first["loss"], abs=1e-5)
    before, after = models["added"].state_dict(), diffclip.load(run)[0].state_dict()
    second_map = [name for name in before if "q2_proj.weight" in name or "k2_proj.weight" in name]
    assert len(second_map) == 8
    assert not any(torch.equal(before[name], after[name]) for name in second_map)
    assert all(0 not in values for values in read_lines(run / "metrics.jsonl")[-1]["lambda"].values())
    correlation = read_lines(run / "validation.jsonl")[-1]["map_correlation"]
    assert all(len(layers) == 2 for layers in correlation.values())


# --- a process that is killed at random moments ---


def train_alone(recipe: Recipe, run: Path) -> None:
    os.setsid()  # a process group of its own, so that its data workers die with it
    runner.train(recipe, run, resume=True)


def begin(recipe: Recipe, run: Path) -> ForkServerProcess:
    """Train in a process that has imported everything already."""
    process = forked.begin(run.with_suffix(".log"), train_alone, recipe, run)
    while process.exitcode is None and os.getpgid(process.pid) != process.pid:
        time.sleep(0.01)
    return process


def steps_of(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text(errors="replace").count("\n") if file.is_file() else 0


def half_written(run: Path) -> int:
    """Return the modification time of an unfinished checkpoint in nanoseconds; 0 if there is none."""
    folder = run / "checkpoints" / ".new.tmp"
    try:
        return folder.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@pytest.mark.slow(minutes=1)
def test_a_run_killed_twenty_times_resumes_to_identical_results(recipe, tmp_path) -> None:
    draw, data = random.Random(1), {"workers": 1, "val_range": [0, 4]}
    recipe = changed(recipe, epochs=40, checkpoint_every=2, log_every=3, validate_every=3, data=data)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    begin(recipe, whole).join()
    steps, halves = [], 0
    for number in range(20):
        old = half_written(cut)
        process = begin(recipe, cut)
        before, extra_steps = steps_of(cut), draw.choice([0, 1, 1, 2, 3])
        while process.exitcode is None and steps_of(cut) < before + extra_steps:
            time.sleep(0.01)
        # kill within a step, a checkpoint or a validation, or during the start
        time.sleep(draw.uniform(0, 0.1 if extra_steps else 0.7))
        while number % 4 == 0 and process.exitcode is None and half_written(cut) in (0, old):
            time.sleep(0.0005)
        assert process.exitcode is None, cut.with_suffix(".log").read_text()[-2000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        steps.append(steps_of(cut))
        halves += half_written(cut) not in (0, old)
    assert len(set(steps)) > 5, steps
    assert halves  # some kills hit a checkpoint while it was being written
    process = begin(recipe, cut)
    process.join()
    assert process.exitcode == 0, cut.with_suffix(".log").read_text()[-2000:]
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(cut / name) == without_times(whole / name)
    files = (run / "checkpoints" / "last" / "model.safetensors" for run in (whole, cut))
    assert next(files).read_bytes() == next(files).read_bytes()
    names = {path.name for path in (cut / "checkpoints").iterdir()}
    assert not [name for name in names if name.endswith(".tmp")], names
