"""What a run starts with: its model, with fresh values or those of a saved one, and what it tells of itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

from diffclip.data.evaluation_sets import EvaluationSet
from diffclip.data.loader import CaptionLoader
from diffclip.data.memory import MemoryLoader
from diffclip.errors import InputError
from diffclip.loading import load
from diffclip.model import CLIP
from diffclip.model_source import find_model
from diffclip.tokenizer import Tokenizer
from diffclip.training.about import add_start, describe_start
from diffclip.training.checkpoint import Progress, choose_checkpoint
from diffclip.training.data import open_training_data, open_validation_data
from diffclip.training.distributed import Hardware, local_rank
from diffclip.training.exchange import share
from diffclip.training.recipe import Recipe
from diffclip.training.run_folder import claim_folder
from diffclip.training.telemetry import Telemetry
from diffclip.weights import check_fit, check_same


class Prepared(NamedTuple):
    """What a process has ready before it meets the others; `checkpoint` is what the first one goes on from."""

    loader: CaptionLoader | MemoryLoader
    validation: EvaluationSet | None
    tokenizer: Tokenizer
    model: CLIP
    checkpoint: Path | None
    lock: IO[str] | None  # held by the first process as long as it trains


def prepare(recipe: Recipe, run: Path, resume: bool, hardware: Hardware, memory: bool = False) -> Prepared:
    """Open the data, build the model and, in the first process, claim the folder of the run.

    Raises:
        InputError: the data, the recipe or the folder cannot be used.
    """
    device = torch.device("cuda", local_rank()) if hardware.accelerator == "cuda" else torch.device("cpu")
    loader = open_training_data(recipe, hardware.rank(), hardware.world, memory, device)
    validation = open_validation_data(recipe, memory)
    tokenizer = Tokenizer(recipe.config().text)
    tokenizer("a text, to see that the vocabulary fits")
    model = build_model(recipe)
    if recipe.weights is not None and not resume:
        take_weights(model, recipe.weights)
    checkpoint, lock = None, None
    if hardware.rank() == 0:
        lock = claim_folder(recipe, run, resume)
        checkpoint = choose_checkpoint(run, _say) if resume else None
    return Prepared(loader, validation, tokenizer, model, checkpoint, lock)


def build_model(recipe: Recipe) -> CLIP:
    """The model of `recipe`, on the CPU, with fresh values."""
    config = recipe.config()
    model = CLIP(config, init=recipe.init, attention_backend=recipe.attention_backend, seed=recipe.seed)
    model.set_grad_checkpointing(recipe.grad_checkpointing)
    return model


def take_weights(model: CLIP, source: str) -> None:
    """Fill `model` from a saved one, whose position embeddings are resampled where the pictures' size differs. From
    one loss to the other the logits' scale and bias start anew.

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
    if (
        window is not None
        and progress.batch
        and progress.processes != fabric.world_size
        and not fabric.global_rank
    ):
        _say(
            f"{run}: with data.window the order depends on the number of processes, {progress.processes} before and "
            f"{fabric.world_size} now: this epoch shows some samples twice and leaves others out"
        )
    progress.order, progress.processes = order, fabric.world_size


def start_telemetry(
    recipe: Recipe,
    run: Path,
    loader: CaptionLoader | MemoryLoader,
    hardware: dict[str, Any],
    steps: int,
    done: int,
) -> Telemetry:
    """Note this start in the folder of the run, and open what tells its `steps` steps after the first `done`."""
    corpus = loader.corpus
    data: dict[str, Any] = {
        "fingerprint": corpus.identity(),
        "samples": corpus.samples,
        "per_epoch": loader.samples,
        "dropped": loader.dropped,
        "steps_per_epoch": loader.batches_per_epoch,
        "sources": corpus.sources,
    }
    if isinstance(loader, MemoryLoader):
        data["resident"] = loader.device.type
    _say(
        f"{run}: {loader.samples} samples an epoch in {loader.batches_per_epoch} batches of {recipe.batch_size}, "
        f"{loader.dropped} left out of each epoch"
        + (f"; {len(loader.faults)} skipped, the first: {loader.faults[0]}" if loader.faults else "")
    )
    about = describe_start(recipe, data, hardware | {"precision": recipe.precision}, done)
    add_start(run, about)
    return Telemetry(
        run,
        f"{recipe.model} seed {recipe.seed}",
        steps,
        done,
        steps_per_epoch=loader.batches_per_epoch,
        validate_every=recipe.validate_every if recipe.data.val is not None else None,
        checkpoint_every=recipe.checkpoint_every,
        wandb=recipe.wandb,
        about=about,
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr)
