"""`train`: a run from its recipe to its last checkpoint. It opens the data, makes the model and the optimizer (fresh,
from saved weights or from a checkpoint), claims the folder, and makes the steps of `loop.py`."""

from __future__ import annotations

import platform
import re
import sys
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from diffclip import threads
from diffclip.attention.dispatch import resolve_backend
from diffclip.data.dataset import DatasetPairs, dataset_set
from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.loader import CaptionLoader
from diffclip.data.open_set import caption_set
from diffclip.data.pairs import PairKeys, Pairs
from diffclip.data.transforms import TrainTransform
from diffclip.errors import Fault, InputError, RankError, require_group
from diffclip.files import digest_of, read_link, write_text
from diffclip.model import CLIP
from diffclip.sources.load import load_clip
from diffclip.tensors import first_names
from diffclip.tokenizer import Tokenizer
from diffclip.training.about import describe_start, hide_credentials
from diffclip.training.checkpoint import (
    RunProgress,
    choose_checkpoint,
    read_state,
    restore_checkpoint,
    try_folder,
)
from diffclip.training.distributed import (
    blocks_of,
    explain_lost_processes,
    gather,
    has_bf16,
    make_fabric,
    native_precision,
    shared_errors,
)
from diffclip.training.launch import Hardware
from diffclip.training.logging import RunLogger, check_loggers, logger_makers
from diffclip.training.loop import Trainer
from diffclip.training.optimizer import freeze, make_optimizer
from diffclip.training.recipe import DataRecipe, Recipe, read_recipe
from diffclip.training.run_folder import (
    RECIPE_FILE,
    add_start,
    check_folder,
    is_started,
    lock_folder,
    recipe_in,
)
from diffclip.training.stopping import StopRequest
from diffclip.training.validation import validate
from diffclip.weights import check_fit, check_same, load_weights


@dataclass
class Outcome:
    """The end of a run in process `rank`: the position in the run, and the shards and samples that were skipped."""

    progress: RunProgress
    skipped: list[Fault] = field(default_factory=list)
    rank: int = 0


def train(
    recipe: Recipe | str | Path,
    run: str | Path,
    resume: bool = False,
    hardware: Hardware | None = None,
    data: Any = None,
    val: Any = None,
) -> Outcome:
    """Train as `recipe` says and write everything to the folder `run`.

    With `resume`, a stopped run continues from its last whole checkpoint, a folder without a run gets a new run, and a
    finished run is left as it is. Several processes (`hardware`) must have been started by `torchrun`, `srun` or
    `diffclip train --devices`.

    Args:
        recipe: a recipe, its file, or the name of a built-in one.
        data: a map-style dataset of (image, captions) that replaces `data.train`, see `diffclip.data.dataset`.
        val: such a dataset that replaces `data.val`.

    Raises:
        InputError: the data, the recipe, the hardware or the folder cannot be used, or the disk is full.
        StoppedError: a signal asked the run to stop; its state is saved.
        DivergedError: a loss, a gradient or an embedding was not finite.
        DiffCLIPError: data stopped coming, or another process is gone.
    """
    require_group("train", "lightning")
    recipe, run = recipe if isinstance(recipe, Recipe) else read_recipe(recipe), Path(run)
    if data is not None:
        named = {"train": str(DatasetPairs(data)), "val": None, "val_range": None}
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update=named)})
    check_loggers(recipe.loggers)
    hardware = (hardware or Hardware()).resolved()
    # precision and backend stay as they were when the run started: other ones would break exact resume
    stored = recipe_in(run) if resume and (run / RECIPE_FILE).is_file() else recipe
    precision = stored.precision if recipe.precision == "auto" else recipe.precision
    recipe = recipe.model_copy(update={"precision": native_precision(precision, hardware.accelerator)})
    fabric: Any = make_fabric(hardware, recipe.precision, recipe.process_timeout)
    with StopRequest(run) as stop, ExitStack() as resources:
        fabric.launch()
        resources.enter_context(explain_lost_processes(fabric))
        if len(set(gather(fabric, recipe.precision))) > 1:
            raise InputError(
                "precision auto is bf16 on some nodes and fp32 on others: give precision=fp32, or precision=bf16"
            )
        is_first, reason = fabric.global_rank == 0, ""
        if is_first and threads.SPIN and hardware.accelerator == "cpu":
            _say(
                "torch was imported before diffclip, so its threads spin while they wait, which can make steps several "
                "times slower: import diffclip first, or set OMP_WAIT_POLICY=PASSIVE"
            )
        if is_first and recipe.precision == "bf16" and not has_bf16(hardware.accelerator):
            _say(
                f"this {hardware.accelerator.upper()} has no instructions for bf16, so steps take up to 13 times as "
                "long as with precision=fp32"
            )
        if recipe.attention_backend == "auto":
            backend: str = stored.attention_backend
            if backend == "auto":
                resolved = _resolve_backend(recipe, fabric) if is_first else ("", "")
                backend, reason = gather(fabric, resolved)[0]
            recipe = recipe.model_copy(update={"attention_backend": backend})
        found = None
        with shared_errors(fabric):
            if is_first:
                check_folder(recipe, run, resume)
                if is_started(run):
                    resources.enter_context(lock_folder(run))
                    found = choose_checkpoint(run)
        checkpoint = gather(fabric, found)[0]
        progress = read_state(checkpoint) if checkpoint is not None else RunProgress()
        if progress.epoch >= recipe.epochs:
            if is_first:
                _say(
                    f"{checkpoint}: the run is finished after step {progress.step}; epochs=N extends it to N epochs"
                )
            return Outcome(progress, rank=fabric.global_rank)
        trainer = _prepare(fabric, recipe, run, checkpoint, progress, stop, resources, data, val)
        if reason and is_first:
            _say(f"{run}: attention backend {recipe.attention_backend}, {reason}")
        hosts = gather(fabric, platform.node())
        with shared_errors(fabric):
            trainer.logger = _open_logger(trainer, hardware, hosts) if is_first else None
        with trainer.logger or nullcontext(), explain_lost_processes(fabric):
            stop.saves = True
            try:
                trainer.train()
            except torch.OutOfMemoryError as error:
                raise RankError(
                    f"{run}: the GPU's memory is too small: go on with --resume and micro_batch=N or "
                    "grad_checkpointing=true"
                ) from error
            except RuntimeError as error:  # of DDP, in the second step
                if not (numbers := re.search(r"not receive grad for rank \d+: ([\d ]+)", str(error))):
                    raise
                trained = [name for name, value in trainer.model.named_parameters() if value.requires_grad]
                unused = first_names(trained[int(number)] for number in numbers[1].split())
                raise InputError(
                    f"the loss does not depend on {unused}, as DDP expects: use it, or give --strategy fsdp"
                ) from None
        return Outcome(trainer.progress, trainer.all_skipped(), fabric.global_rank)


def open_training_data(
    recipe: Recipe, rank: int, world: int, pin_memory: bool = False, dataset: Any = None
) -> CaptionLoader:
    """Open the training shards of `recipe`, or the `dataset` in their place, as a loader of this process's share of
    uint8 batches.

    Nothing is written beside the shards. With `data.memory`, all images are decoded here and kept in memory. The errors
    are those of `TarSet` and `CaptionLoader`.
    """
    config, data = recipe.config(), recipe.data
    pairs: Pairs | DatasetPairs
    if dataset is not None:
        pairs = DatasetPairs(dataset)
    else:
        pairs = Pairs(data.train, _pair_keys(data), data.window, data.cache, data.cache_gb)
    transform = TrainTransform(config.vision.image_size, config.preprocess, data.scale, data.flip)
    tokenizer, size, seed = Tokenizer(config.text), recipe.batch_size, recipe.seed
    if data.memory:
        pairs.decode()
    return CaptionLoader(
        pairs, transform, tokenizer, size, seed, data.workers, rank, world, data.timeout, pin_memory
    )


def open_validation_data(recipe: Recipe) -> EvaluationSet | None:
    """Open the validation split of `recipe`; None if it has none. A split that cannot be used raises `InputError`."""
    if recipe.data.val is None:
        return None
    data = recipe.data
    validation_set = caption_set("validation", "val", data.val, _pair_keys(data), data.cache, data.cache_gb)
    return validation_set if recipe.data.val_range is None else validation_set.part(*recipe.data.val_range)


def _pair_keys(data: DataRecipe) -> PairKeys:
    return PairKeys(data.image_key, data.text_key, data.caption_key, data.captions)


def build_model(recipe: Recipe) -> CLIP:
    """Make the model of `recipe`, on the CPU, with fresh values and its parts frozen."""
    model = CLIP(recipe.config(), recipe.init, recipe.attention_backend, recipe.seed)
    model.set_grad_checkpointing(recipe.grad_checkpointing)
    freeze(model, recipe.freeze)
    return model


def compile_blocks(model: CLIP) -> None:
    """Let torch compile each block of both towers when it first runs."""
    # each layer of DiffCLIP-dynamic has its own factor, and so its own compiled graph
    limit = max(torch._dynamo.config.recompile_limit, 8 * len(blocks_of(model)))
    torch._dynamo.config.recompile_limit = limit
    for block in blocks_of(model):
        block.compile()


def load_initial_weights(model: CLIP, source: str) -> None:
    """Fill `model` with the weights of a saved model; position embeddings are resampled if the image size differs. If
    the loss differs, the logit scale and bias keep their initial values. Another model, other image statistics, or a
    source that cannot be read raises `InputError`."""
    vision, text = model.config.vision, model.config.text
    saved = load_clip(source, image_size=vision.image_size, context_length=text.context_length)[0]
    theirs, ours = saved.config.preprocess, model.config.preprocess
    if (theirs.mean, theirs.std) != (ours.mean, ours.std):
        raise InputError(
            f"{source} was trained with mean {theirs.mean} and std {theirs.std}, not {ours.mean} and {ours.std}: "
            "choose the data.statistics it had"
        )
    check_same(model.config, saved.config, source)
    state = saved.state_dict()
    if model.config.logit_bias != saved.config.logit_bias:  # the losses differ
        initial = model.state_dict()
        state = {name: initial[name] if name.startswith("logit_") else state[name] for name in initial}
    check_fit(model, state, source)
    model.load_state_dict(state)
    if saved.config.vision.norm_eps is not None:
        model.set_vision_norm_eps(saved.config.vision.norm_eps)


def _resolve_backend(recipe: Recipe, fabric: Any) -> tuple[str, str]:
    """Return the attention backend that "auto" stands for here, with the reason."""
    vision = recipe.config().vision
    batch = recipe.micro_batch or recipe.batch_size // fabric.world_size
    tokens = (vision.image_size // vision.patch_size) ** 2 + 1 + vision.registers
    dtype = torch.bfloat16 if recipe.precision == "bf16" else torch.float32
    shape = (batch, vision.heads, tokens, vision.width // vision.heads)
    return resolve_backend(shape, vision.is_differential, fabric.device, dtype)


def _prepare(
    fabric: Any,
    recipe: Recipe,
    run: Path,
    checkpoint: Path | None,
    progress: RunProgress,
    stop: StopRequest,
    resources: ExitStack,
    data: Any,
    val: Any,
) -> Trainer:
    """Open the data, make the model and the optimizer, and claim the run's folder; `resources` closes loader and lock.

    Nothing is written before data, their order, weights and sizes are known to be usable.
    """
    rank, world = fabric.global_rank, fabric.world_size
    for first_of_node in (True, False):  # the first process of a node copies remote shards for the others
        with shared_errors(fabric):
            if (fabric.local_rank == 0) == first_of_node:
                loader = open_training_data(recipe, rank, world, fabric.device.type == "cuda", data)
                validation = (
                    open_validation_data(recipe) if val is None else dataset_set(val, "val", "validation")
                )
    resources.enter_context(closing(loader))
    tokenizer = Tokenizer(recipe.config().text)
    tokenizer("a text, to see that the vocabulary fits")
    model = build_model(recipe)
    with shared_errors(fabric):
        if checkpoint is not None:
            load_weights(model, checkpoint)
        elif recipe.weights is not None:
            load_initial_weights(model, recipe.weights)
    _check_order(progress, loader, fabric, run)
    with shared_errors(fabric):
        if rank == 0:
            if checkpoint is None:
                resources.enter_context(lock_folder(run))
                if is_started(run):
                    raise InputError(f"{run} was trained by another process meanwhile: go on with --resume")
            try_folder(run)
            write_text(run / RECIPE_FILE, recipe.to_yaml())
    torch.manual_seed(recipe.seed + rank)
    if recipe.compile:
        compile_blocks(model)
    wrapped = fabric.setup_module(model)
    optimizer = make_optimizer(model, recipe)
    wrapped_optimizer = fabric.setup_optimizers(optimizer)
    if checkpoint is not None:
        restore_checkpoint(fabric, checkpoint, model, optimizer, recipe.seed)
    scorer = None
    if validation is not None:
        digest = digest_of(validation.captions)
        # without its checkpoint (removed as damaged, or a kill came before its rename) a best score does not count
        if progress.validation not in (None, digest) or not read_link(run / "checkpoints" / "best"):
            progress.best_score = None
        progress.validation = digest
        scorer = partial(validate, fabric, model, validation, tokenizer, recipe)
    return Trainer(
        recipe, run, fabric, stop, loader, scorer, model, wrapped, optimizer, wrapped_optimizer, progress
    )


def _check_order(progress: RunProgress, loader: CaptionLoader, fabric: Any, run: Path) -> None:
    """Raise `InputError` if the order of samples (shards, weights, window) differs between processes or from the
    checkpoint's; else note the order and the number of processes in `progress`."""
    tars, before, world = loader.pairs.tars, progress.processes, fabric.world_size
    order = tars.order_identity
    if len(set(gather(fabric, order))) > 1:
        raise InputError("the processes do not see the same shards: give every node the same data")
    if progress.order not in (None, order):
        raise InputError(
            f"{run}: the shards are not those that its checkpoint saw (files or samples came or went): "
            f"bring them back, or start a new run with weights={run}/checkpoints/last"
        )
    if progress.batch and before != world and tars.window is not None and not fabric.global_rank:
        _say(
            f"{run}: with data.window the order depends on the number of processes, {before} before and {world} now: "
            "this epoch shows some samples twice and leaves others out"
        )
    progress.order, progress.processes = order, world


def _open_logger(trainer: Trainer, hardware: Hardware, hosts: list[str]) -> RunLogger:
    """Add this start to `about.json`, write the shards' indexes beside the shards, and open the log of the steps."""
    recipe, run, loader = trainer.recipe, trainer.run, trainer.loader
    tars, done, steps = loader.pairs.tars, trainer.progress.step, trainer.steps
    tars.keep_indexes()
    begins = f"going on after step {done} of {steps}" if done else f"{steps} steps"
    _say(
        f"{run}: {begins}, {recipe.precision}, {loader.samples} samples per epoch in {loader.batches_per_epoch} "
        f"batches of {recipe.batch_size}, {loader.dropped} left out of each epoch"
        + (f"; {len(loader.faults)} skipped, the first: {loader.faults[0]}" if loader.faults else "")
    )
    for note in (*recipe.notes(), *tars.notes[:3]):
        _say(f"{run}: {note}")
    data = {
        "fingerprint": tars.identity,
        "samples": len(tars),
        "per_epoch": loader.samples,
        "dropped": loader.dropped,
        "steps_per_epoch": loader.batches_per_epoch,
        "sources": tars.sources,
    }
    processes = {
        "world": hardware.world,
        "nodes": hardware.nodes,
        "strategy": hardware.strategy,
        "hosts": hosts,
        "precision": recipe.precision,
    }
    about = describe_start(data, processes, done, steps)
    add_start(run, about)
    # without credentials, because Weights & Biases shows it to others
    config = hide_credentials(recipe.model_dump(mode="json")) | {"about": about}
    loggers = logger_makers(recipe, run, done, config)
    return RunLogger(run, f"{recipe.model} seed {recipe.seed}", steps, done, loggers)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
