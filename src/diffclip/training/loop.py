"""The training loop: forward, loss, backward, step. One process; Fabric places the model and sets the precision."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from diffclip.data.catalog import EvaluationSet, caption_set
from diffclip.data.loader import Batch, CaptionLoader
from diffclip.data.samples import Fault
from diffclip.data.shards import Shards, expand_shards
from diffclip.data.transforms import eval_transform, normalise, train_transform
from diffclip.errors import DiffCLIPError, InputError, require_group
from diffclip.evaluation.retrieval import validate_retrieval
from diffclip.files import disk_errors, write_text
from diffclip.model import CLIP
from diffclip.tokenizer import Tokenizer
from diffclip.training.checkpoint import Progress, restore_checkpoint, save_checkpoint, withdraw_checkpoint
from diffclip.training.optimiser import MAX_LOGIT_SCALE, learning_rate, make_optimiser
from diffclip.training.recipe import Recipe, read_recipe, to_yaml
from diffclip.training.telemetry import METRICS_FILE, TENSORBOARD_FOLDER, VALIDATION_FILE, Telemetry

RECIPE_FILE = "recipe.yaml"
# keys that change nothing about the numbers of a run, so that a resumed run may have others
_FREE_KEYS = {"data.workers", "checkpoint_every"}
# what a run that was stopped before its first checkpoint may have left
_OF_A_RUN = {RECIPE_FILE, METRICS_FILE, VALIDATION_FILE, TENSORBOARD_FOLDER, "checkpoints", "report.html"}


@dataclass
class Outcome:
    """How a run ended: where it is, how far it came, and the samples that were skipped, by name."""

    run: Path
    progress: Progress
    skipped: dict[str, Fault] = field(default_factory=dict)


def train(recipe: Recipe, run: Path, resume: bool = False) -> Outcome:
    """Train as `recipe` says and leave everything in the folder `run`.

    Raises:
        InputError: the data, the recipe or the folder cannot be used, or the disk is full.
        DiffCLIPError: a loss or gradient was not finite; the last good state is kept.
    """
    require_group("train", "lightning", "tensorboard")
    from lightning.fabric import Fabric
    from open_clip.loss import ClipLoss

    for name in ("lightning.fabric", "lightning.pytorch"):  # they announce what the recipe says
        logging.getLogger(name).setLevel(logging.WARNING)

    config = recipe.config()
    tokenizer = Tokenizer(config.text)
    tokenizer("a text, to see that the vocabulary fits")
    loader = open_training_data(recipe)
    validation = open_validation_data(recipe)
    torch.manual_seed(recipe.seed)
    model = CLIP(config, init=recipe.init, attention_backend=recipe.attention_backend, seed=recipe.seed)
    claim_folder(recipe, run, resume)

    fabric = Fabric(devices=1, precision="bf16-mixed" if recipe.precision == "bf16" else "32-true")
    model.to(fabric.device)
    optimiser = make_optimiser(model, recipe)
    wrapped, wrapped_optimiser = fabric.setup(model, optimiser)
    criterion = ClipLoss()

    progress = restore_checkpoint(run, model, optimiser) if resume else Progress()
    steps = recipe.epochs * loader.batches_per_epoch
    warmup_steps = round(recipe.warmup_epochs * loader.batches_per_epoch)
    skipped = {fault.name: fault for fault in loader.faults}

    with Telemetry(run, f"{recipe.model} seed {recipe.seed}", steps, progress.step) as telemetry:
        for epoch in range(progress.epoch, recipe.epochs):
            model.train()
            for wait, batch in _timed(loader.epoch(epoch, start_batch=progress.batch)):
                started = time.perf_counter()
                skipped |= {fault.name: fault for fault in batch.faults}
                progress.batch += 1
                if not len(batch):
                    continue
                step = progress.step + 1
                lr = learning_rate(step, steps, warmup_steps, recipe)
                for group in optimiser.param_groups:
                    group["lr"] = lr

                images = normalise(batch.images.to(fabric.device), config.preprocess)
                out = wrapped(images, batch.tokens.to(fabric.device))
                loss = criterion(out["image_features"], out["text_features"], out["logit_scale"])
                fabric.backward(loss)
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_grad_norm or math.inf)
                if not (torch.isfinite(loss) and torch.isfinite(norm)):
                    _stop(run, model, optimiser, progress, loss, norm)
                wrapped_optimiser.step()
                optimiser.zero_grad()
                with torch.no_grad():
                    model.logit_scale.clamp_(0, MAX_LOGIT_SCALE)

                progress.step, progress.samples = step, progress.samples + len(batch)
                took = time.perf_counter() - started
                telemetry.step(
                    {
                        "step": step,
                        "epoch": epoch + 1,
                        "samples": progress.samples,
                        "loss": loss.item(),
                        "accuracy": accuracy_within(out),
                        "lr": lr,
                        "logit_scale": out["logit_scale"].item(),
                        "grad_norm": norm.item(),
                        "samples_per_second": len(batch) / (wait + took),
                        "data_wait": wait / (wait + took),
                        "lambda": {tower: lam.tolist() for tower, lam in model.lambdas().items()},
                    }
                )
                due = recipe.checkpoint_every and step % recipe.checkpoint_every == 0
                if due and progress.batch < loader.batches_per_epoch:
                    save_checkpoint(run, model, optimiser, progress)

            progress.epoch, progress.batch = epoch + 1, 0
            best = False
            last = progress.epoch == recipe.epochs
            if validation and (progress.epoch % recipe.validate_every == 0 or last):
                score = validate(model, validation, tokenizer, recipe, telemetry, progress)
                best = progress.best_score is None or score > progress.best_score
                progress.best_score = score if best else progress.best_score
            save_checkpoint(run, model, optimiser, progress, best=best)
    return Outcome(run, progress, skipped)


def open_training_data(recipe: Recipe) -> CaptionLoader:
    """The training shards of `recipe` as a loader of uint8 batches.

    Raises:
        InputError: shards are missing or empty, or hold fewer samples than a batch.
    """
    config, data = recipe.config(), recipe.data
    return CaptionLoader(
        Shards(expand_shards(data.train)),
        train_transform(config.vision.image_size, config.preprocess, data.scale, data.flip),
        Tokenizer(config.text),
        recipe.batch_size,
        recipe.seed,
        data.workers,
        data.caption_key,
    )


def open_validation_data(recipe: Recipe) -> EvaluationSet | None:
    """The validation split of `recipe`, or None where it has none.

    Raises:
        InputError: shards are missing, empty or without captions.
    """
    if recipe.data.val is None:
        return None
    return caption_set("validation", "val", Shards(expand_shards(recipe.data.val)), recipe.data.caption_key)


def claim_folder(recipe: Recipe, run: Path, resume: bool) -> None:
    """Make `run` this recipe's folder, or see that it is.

    Raises:
        InputError: it holds a run and `resume` is not set; or it is set, and there is no run or one of another recipe.
    """
    file = run / RECIPE_FILE
    if not resume:
        if (run / "checkpoints" / "last").exists():
            raise InputError(
                f"{run} holds a run already: add --resume to go on with it, or choose another --run"
            )
        with disk_errors(run):
            run.mkdir(parents=True, exist_ok=True)
            found = {path.name for path in run.iterdir()}
        if found and not (found <= _OF_A_RUN and TENSORBOARD_FOLDER in found):
            raise InputError(f"{run} holds other files: choose a new or an empty folder for --run")
        write_text(file, to_yaml(recipe))
        return
    if not file.is_file():
        raise InputError(f"{run} holds no run to resume: start it without --resume")
    before, now = (_flat(r.model_dump()) for r in (read_recipe(file), recipe))
    for key in now:
        if key not in _FREE_KEYS and now[key] != before[key]:
            raise InputError(
                f"{run} was started with {key}={before[key]}, not {now[key]}: resume with the same recipe"
            )


def validate(
    model: CLIP,
    data: EvaluationSet,
    tokenizer: Tokenizer,
    recipe: Recipe,
    telemetry: Telemetry,
    progress: Progress,
) -> float:
    """Retrieval on the validation split, told to `telemetry`; returns the mean of its six recalls."""
    transform = eval_transform(model.config.vision.image_size, model.config.preprocess)
    device = model.logit_scale.device
    batches = (
        (batch.images.to(device), batch.captions or [])
        for batch in data.batches(transform, recipe.batch_size, recipe.data.workers)
    )
    scores = validate_retrieval(model, tokenizer, batches)
    size = {"pictures": len(data), "captions": sum(map(len, data.captions))}
    done = {"step": progress.step, "epoch": progress.epoch, "samples": progress.samples}
    telemetry.validation(done | size | scores)
    return scores["score"]


def accuracy_within(out: dict[str, Tensor]) -> float:
    """Share of a batch whose own partner scores highest among the batch, mean of both directions."""
    with torch.no_grad():
        scores = out["image_features"] @ out["text_features"].T
        own = torch.arange(len(scores), device=scores.device)
        right = [(scores.argmax(dim) == own).float().mean().item() for dim in (0, 1)]
    return sum(right) / 2


def _stop(
    run: Path, model: CLIP, optimiser: torch.optim.Optimizer, progress: Progress, loss: Tensor, norm: Tensor
) -> NoReturn:
    """Keep the last state that is known to be good, and raise.

    A loss that is not finite says that the state before this step is bad (or its batch is): then the checkpoint before
    it stays. A gradient that is not finite leaves a state whose loss was still finite: that one is kept.
    """
    what = f"step {progress.step + 1}: the loss is {loss.item()}, the gradient's norm {norm.item()}"
    if torch.isfinite(loss) and progress.step:
        progress.batch -= 1  # the failing batch is not done
        kept: Path | None = save_checkpoint(run, model, optimiser, progress)
    else:
        kept = withdraw_checkpoint(run, progress.step)
    state = f"the last good state is {kept}" if kept else "there is no earlier checkpoint"
    raise DiffCLIPError(f"{what}; {state}: start again with a lower lr, a longer warm-up or clip_grad_norm=1")


def _timed(batches: Iterator[Batch]) -> Iterator[tuple[float, Batch]]:
    """Each batch with the seconds that were spent waiting for it."""
    while True:
        started = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            return
        yield time.perf_counter() - started, batch


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        flat |= _flat(value, f"{prefix}{key}.") if key == "data" else {f"{prefix}{key}": value}
    return flat
