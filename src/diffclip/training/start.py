"""The start of a run: its folder, data, model and optimizer, from fresh values, saved weights or a checkpoint."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.loader import CaptionLoader
from diffclip.data.memory import MemoryLoader
from diffclip.errors import InputError
from diffclip.files import write_text
from diffclip.loading import load
from diffclip.model import CLIP
from diffclip.model_source import find_model
from diffclip.tokenizer import Tokenizer
from diffclip.training.checkpoint import Progress, choose_checkpoint, read_state, restore_checkpoint
from diffclip.training.data import open_training_data, open_validation_data
from diffclip.training.distributed import (
    all_do,
    compile_blocks,
    first_does,
    native_precision,
    one_by_one,
    share,
)
from diffclip.training.launch import Hardware
from diffclip.training.logging import RunLogger
from diffclip.training.optimizer import make_optimizer
from diffclip.training.recipe import Recipe, read_recipe, to_yaml
from diffclip.training.run_folder import (
    RECIPE_FILE,
    add_start,
    check_folder,
    claim_folder,
    describe_start,
    is_started,
    lock_folder,
)
from diffclip.weights import check_fit, check_same, load_weights


@dataclass
class Parts:
    """The parts of a run in one process."""

    progress: Progress
    loader: CaptionLoader | MemoryLoader
    validation: EvaluationSet | None
    tokenizer: Tokenizer
    model: CLIP
    wrapped: Any  # the model as Fabric runs it
    optimizer: torch.optim.AdamW
    wrapped_optimizer: Any


def resolve(recipe: Recipe, run: Path, resume: bool, hardware: Hardware) -> Recipe:
    """`recipe` with its precision: that of the run which is resumed, or what the hardware computes natively."""
    precision = recipe.precision
    if precision == "auto" and resume and (run / RECIPE_FILE).is_file():
        precision = read_recipe(run / RECIPE_FILE).precision
    return recipe.model_copy(update={"precision": native_precision(precision, hardware.accelerator)})


def find_checkpoint(fabric: Any, recipe: Recipe, run: Path, resume: bool, held: ExitStack) -> Path | None:
    """The checkpoint of `run` to go on from, whose folder is locked as long as `held` is open; None to start anew.

    Raises:
        InputError: the folder cannot be used for this recipe.
    """

    def find() -> Path | None:
        check_folder(recipe, run, resume)
        if not (resume and is_started(run)):
            return None
        held.enter_context(lock_folder(run))
        return choose_checkpoint(run, _say)

    return first_does(fabric, find)


def prepare(
    fabric: Any,
    recipe: Recipe,
    run: Path,
    resume: bool,
    checkpoint: Path | None,
    held: ExitStack,
) -> Parts:
    """Open the data, make the model and the optimizer, and claim the folder of the run, whose lock `held` closes.

    Nothing is written before data, weights and sizes have proved usable.

    Raises:
        InputError: the data, the recipe or the folder cannot be used.
    """
    rank, world = fabric.global_rank, fabric.world_size
    loader, validation = (
        one_by_one(  # the first process of a node makes the index of the shards for the others
            fabric,
            lambda: (
                open_training_data(recipe, rank, world, fabric.device),
                open_validation_data(recipe),
            ),
        )
    )
    tokenizer = Tokenizer(recipe.config().text)
    tokenizer("a text, to see that the vocabulary fits")
    model = build_model(recipe)
    if checkpoint is not None:
        all_do(fabric, lambda: load_weights(model, checkpoint))
    elif recipe.weights is not None:
        source = recipe.weights
        all_do(fabric, lambda: take_weights(model, source))

    def claim() -> None:
        if checkpoint is None:
            held.enter_context(claim_folder(recipe, run, resume))
        else:
            write_text(run / RECIPE_FILE, to_yaml(recipe))

    first_does(fabric, claim)
    torch.manual_seed(recipe.seed + rank)
    if recipe.compile:
        compile_blocks(model)
    wrapped = fabric.setup_module(model)
    optimizer = make_optimizer(model, recipe)
    wrapped_optimizer = fabric.setup_optimizers(optimizer)
    progress = Progress()
    if checkpoint is not None:
        progress = all_do(
            fabric, lambda: restore_checkpoint(fabric, checkpoint, model, optimizer, recipe.seed)
        )
    check_order(progress, loader, fabric, run)
    return Parts(progress, loader, validation, tokenizer, model, wrapped, optimizer, wrapped_optimizer)


def build_model(recipe: Recipe) -> CLIP:
    """The model of `recipe`, on the CPU, with fresh values."""
    config = recipe.config()
    model = CLIP(config, init=recipe.init, attention_backend=recipe.attention_backend, seed=recipe.seed)
    model.set_grad_checkpointing(recipe.grad_checkpointing)
    return model


def take_weights(model: CLIP, source: str) -> None:
    """Fill `model` from a saved one, whose position embeddings are resampled where the image size differs. From one
    loss to the other the logits' scale and bias start anew.

    Raises:
        InputError: `source` cannot be read, or holds another model.
    """
    found = find_model(source)
    if found is None:
        raise InputError(f"weights={source} is the name of a model without weights: give a saved one")
    saved = load(found, image_size=model.config.vision.image_size)[0]
    prepared, wanted = saved.config.preprocess, model.config.preprocess
    if (prepared.mean, prepared.std) != (wanted.mean, wanted.std):
        raise InputError(
            f"{source} was trained with mean {prepared.mean} and std {prepared.std}, "
            f"not {wanted.mean} and {wanted.std}: choose the data.statistics it had"
        )
    check_same(model, saved.config, source)
    state = saved.state_dict()
    if model.config.logit_bias != saved.config.logit_bias:  # from one loss to the other
        own = model.state_dict()
        state = {name: own[name] if name.startswith("logit_") else state[name] for name in own}
    check_fit(model, state, source)
    model.load_state_dict(state)
    if saved.config.vision.norm_eps is not None:
        model.set_vision_norm_eps(saved.config.vision.norm_eps)


def check_order(progress: Progress, loader: CaptionLoader | MemoryLoader, fabric: Any, run: Path) -> None:
    """See that the samples still to come are those that the run had still to see, in every process.

    Raises:
        InputError: the shards are others than before, or than another process has.
    """
    order, window = loader.corpus.order_identity(), loader.corpus.window
    if len(set(share(fabric, order))) > 1:
        raise InputError("the processes do not see the same shards: give every node the same data")
    if progress.order not in (None, order):
        raise InputError(
            f"{run}: the shards are not those that its checkpoint saw (files or samples came or went): "
            f"bring them back, or start a new run with weights={run}/checkpoints/last"
        )
    moved = progress.processes != fabric.world_size
    if window is not None and progress.batch and moved and not fabric.global_rank:
        _say(
            f"{run}: with data.window the order depends on the number of processes, {progress.processes} before and "
            f"{fabric.world_size} now: this epoch shows some samples twice and leaves others out"
        )
    progress.order, progress.processes = order, fabric.world_size


def open_logger(
    fabric: Any, recipe: Recipe, run: Path, parts: Parts, steps: int, processes: dict[str, Any]
) -> RunLogger | None:
    """Note this start in `about.json`, keep the indexes of the shards beside them, and open the log of the steps; None
    but in the first process.

    Raises:
        InputError: a file cannot be written, or Weights & Biases cannot be used.
    """
    if fabric.global_rank:
        return None
    loader, done = parts.loader, parts.progress.step
    corpus = loader.corpus
    corpus.keep_indexes()
    data = {
        "fingerprint": corpus.identity(),
        "samples": corpus.samples,
        "per_epoch": loader.samples,
        "dropped": loader.dropped,
        "steps_per_epoch": loader.batches_per_epoch,
        "sources": [source._asdict() for source in corpus.sources],
    }
    begins = f"going on after step {done} of {steps}" if done else f"{steps} steps"
    _say(
        f"{run}: {begins}, {recipe.precision}, {loader.samples} samples an epoch in {loader.batches_per_epoch} "
        f"batches of {recipe.batch_size}, {loader.dropped} left out of each epoch"
        + (f"; {len(loader.faults)} skipped, the first: {loader.faults[0]}" if loader.faults else "")
    )
    about = describe_start(recipe, data, processes | {"precision": recipe.precision}, done, steps)
    add_start(run, about)
    config = recipe.model_dump(mode="json") | {"about": about}
    return RunLogger(run, f"{recipe.model} seed {recipe.seed}", steps, done, recipe.wandb, config)


def finished_progress(recipe: Recipe, checkpoint: Path | None) -> Progress | None:
    """The place of `checkpoint` where it is the end of the run."""
    progress = read_state(checkpoint) if checkpoint else None
    if progress is None or progress.epoch < recipe.epochs:
        return None
    _say(f"{checkpoint}: the run is finished after step {progress.step}; epochs=N extends it to N epochs")
    return progress


def _say(line: str) -> None:
    print(line, file=sys.stderr)
