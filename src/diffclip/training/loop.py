"""The training loop: forward, loss, backward, step. Fabric places the model, sets the precision and, with several
processes, brings gradients together; every process runs this file."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.loader import Batch, CaptionLoader
from diffclip.data.memory import MemoryLoader
from diffclip.data.samples import Fault
from diffclip.data.transforms import normalise
from diffclip.errors import (
    DiffCLIPError,
    DivergedError,
    InputError,
    NotFiniteError,
    StoppedError,
    require_group,
)
from diffclip.model import CLIP
from diffclip.tokenizer import Tokenizer
from diffclip.training import distributed, exchange
from diffclip.training.accumulate import backward_of_batch
from diffclip.training.checkpoint import (
    Progress,
    restore_checkpoint,
    save_checkpoint,
    withdraw_checkpoint,
)
from diffclip.training.distributed import Hardware
from diffclip.training.interrupt import StopRequest
from diffclip.training.losses import accuracy_within, make_criterion
from diffclip.training.optimiser import MAX_LOGIT_SCALE, learning_rate, make_optimiser
from diffclip.training.recipe import Recipe
from diffclip.training.start import Prepared, check_order, prepare, start_telemetry, take_weights
from diffclip.training.telemetry import Silent, Telemetry
from diffclip.training.validation import Validation, validate
from diffclip.weights import load_weights


@dataclass
class Outcome:
    """How a run ended: where it is, how far it came, and the samples that were skipped, by name."""

    run: Path
    progress: Progress
    skipped: dict[str, Fault] = field(default_factory=dict)


def train(
    recipe: Recipe,
    run: Path,
    resume: bool = False,
    hardware: Hardware | None = None,
    memory: bool = False,
    spacing: float = 0.0,
) -> Outcome:
    """Train as `recipe` says and leave everything in the folder `run`; in one process unless `hardware` says more.

    With `memory` images are decoded once and kept, on a GPU if it trains there. The run is the same then, but a GPU
    rounds the crops in another way.

    An epoch that ends sooner than `spacing` seconds after a checkpoint has none of its own, unless it is the best one
    so far or the last: where an epoch takes two seconds, writing its checkpoint takes half as long again.

    Raises:
        InputError: the data, the recipe, the hardware or the folder cannot be used, or the disk is full.
        StoppedError: a signal asked the run to stop; its state is saved.
        DivergedError: a loss, a gradient or an embedding was not finite; the last good state is kept.
        DiffCLIPError: data stopped coming.
    """
    require_group("train", "lightning", "tensorboard")
    hardware = (hardware or Hardware()).resolved()
    with StopRequest(run) as stop:
        try:
            return _train(recipe, run, resume, hardware, stop, memory, spacing)
        except RuntimeError as error:
            if hardware.world == 1 or not exchange.is_lost(error):
                raise
            raise DiffCLIPError(
                f"process {hardware.rank()} of {hardware.world} lost another one, which was killed or ran out of "
                f"memory ({' '.join(str(error).split())[:120]}): see what it said, and go on with --resume"
            ) from None


def _train(
    recipe: Recipe,
    run: Path,
    resume: bool,
    hardware: Hardware,
    stop: StopRequest,
    memory: bool,
    spacing: float,
) -> Outcome:
    """`train` on resolved `hardware`."""
    fabric = distributed.make_fabric(hardware, recipe.precision)
    if distributed.local_rank():  # the first process of a node makes the index of the shards for the others
        distributed.launch(fabric, hardware)
    prepared: Prepared | DiffCLIPError
    try:
        prepared = prepare(recipe, run, resume, hardware, memory)
    except DiffCLIPError as error:
        if distributed.is_alone():
            raise
        prepared = error
    if not distributed.local_rank():
        distributed.launch(fabric, hardware)
    mine = prepared if isinstance(prepared, DiffCLIPError) else prepared.checkpoint
    checkpoint = exchange.share_or_raise(fabric, mine)[0]
    assert isinstance(prepared, Prepared)
    loader, validation, tokenizer, model, _, lock = prepared
    if checkpoint:
        exchange.all_do(fabric, partial(load_weights, model, checkpoint))
    elif resume and recipe.weights is not None:  # nothing was saved yet
        exchange.all_do(fabric, partial(take_weights, model, recipe.weights))
    torch.manual_seed(recipe.seed + fabric.global_rank)
    if recipe.compile:
        distributed.compile_blocks(model)
    wrapped = fabric.setup_module(model)
    optimiser = make_optimiser(model, recipe)
    wrapped_optimiser = fabric.setup_optimizers(optimiser)
    progress = Progress()
    if checkpoint:
        restore = partial(restore_checkpoint, fabric, checkpoint, model, optimiser, recipe.seed)
        progress = exchange.all_do(fabric, restore)
    exchange.all_do(fabric, partial(check_order, progress, loader, fabric, run))
    job = _Job(recipe, run, fabric, model, wrapped, optimiser, wrapped_optimiser, loader, progress)
    hosts = exchange.share(fabric, platform.node())
    facts = {"world": hardware.world, "nodes": hardware.nodes, "strategy": hardware.strategy, "hosts": hosts}
    start: Any = partial(start_telemetry, recipe, run, loader, facts, job.steps, progress.step)
    telling = exchange.all_do(fabric, Silent if fabric.global_rank else start)
    stop.saves = True
    with closing(loader), lock or nullcontext(), telling as telemetry:
        for epoch in range(progress.epoch, recipe.epochs):
            _epoch(job, epoch, telemetry, stop)
            progress.epoch, progress.batch = epoch + 1, 0
            best = False
            due = progress.epoch % recipe.validate_every == 0 or progress.epoch == recipe.epochs
            if validation and due:
                best = _validate(job, validation, tokenizer, telemetry)
            if best or progress.epoch == recipe.epochs or job.wants_saving(spacing):
                job.save(telemetry, best)
    return Outcome(run, progress, job.all_skipped())


@dataclass
class _Job:
    """What the steps of a run share."""

    recipe: Recipe
    run: Path
    fabric: Any
    model: CLIP
    wrapped: Any  # the model as Fabric runs it
    optimiser: torch.optim.AdamW
    wrapped_optimiser: Any
    loader: CaptionLoader | MemoryLoader
    progress: Progress
    skipped: dict[str, Fault] = field(default_factory=dict)

    def __post_init__(self) -> None:
        recipe, world = self.recipe, self.fabric.world_size
        per_epoch = self.loader.batches_per_epoch
        self.steps, self.warmup_steps = recipe.epochs * per_epoch, round(recipe.warmup_epochs * per_epoch)
        self.criterion = make_criterion(recipe.loss, recipe.gather_with_grad, self.fabric.global_rank, world)
        self.saved = time.monotonic()

    def backward(self, images: Tensor, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradients of a batch: the loss [] of this process's share, and what the model returned for it."""
        size, backward = self.recipe.micro_batch, self.fabric.backward
        without_sync = partial(self.fabric.no_backward_sync, self.wrapped)
        return backward_of_batch(self.forward, self.criterion, images, tokens, backward, size, without_sync)

    def forward(self, images: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """What the model makes of uint8 pictures and tokens."""
        out: dict[str, Tensor] = self.wrapped(normalise(images, self.model.config.preprocess), tokens)
        return out

    def save(self, telemetry: Telemetry | Silent, best: bool = False) -> Path:
        """Write a checkpoint."""
        with telemetry.pause("checkpoint"):
            kept = save_checkpoint(
                self.fabric, self.run, self.model, self.optimiser, self.progress, best, self.recipe.keep_every
            )
        self.saved = time.monotonic()
        return kept

    def wants_saving(self, spacing: float) -> bool:
        """Whether the last checkpoint is so many seconds old; the first process's clock is everybody's."""
        if not spacing:
            return True
        return exchange.share(self.fabric, time.monotonic() - self.saved)[0] >= spacing

    def all_skipped(self) -> dict[str, Fault]:
        """What any process has skipped, by name."""
        known = {fault.name: fault for fault in self.loader.faults}  # the same in all
        return known | {
            name: fault for part in exchange.share(self.fabric, self.skipped) for name, fault in part.items()
        }


def _epoch(job: _Job, epoch: int, telemetry: Telemetry | Silent, stop: StopRequest) -> None:
    """The batches of `epoch` that are still to come."""
    recipe, fabric, model, progress = job.recipe, job.fabric, job.model, job.progress
    model.train()
    whole, before = progress.batch == 0, progress.samples
    fault: Fault | None = None
    failed: DiffCLIPError | None = None
    for wait, batch in _timed(job.loader.epoch(epoch, start_batch=progress.batch)):
        started = time.perf_counter()
        failed = failed or (batch if isinstance(batch, DiffCLIPError) else None)
        # beside a process that met broken samples, the others leave as many out: all have the same number
        count, asked = exchange.agree(fabric, -1 if failed else len(batch), stop.asked)
        if count < 0:
            exchange.share_or_raise(fabric, failed)
        job.skipped |= {found.name: found for found in batch.faults}
        fault = fault or next(iter(batch.faults), None)
        if asked:
            _leave(job, telemetry)
        progress.batch += 1
        if not count:
            continue
        step = progress.step + 1
        lr = learning_rate(step, job.steps, job.warmup_steps, recipe)
        for group in job.optimiser.param_groups:
            group["lr"] = lr

        images, tokens = (part[:count].to(fabric.device) for part in (batch.images, batch.tokens))
        loss, out = job.backward(images, tokens)
        distributed.average_small(fabric, model)
        norm = distributed.clip_gradients(model, recipe.clip_grad_norm)
        accuracy = accuracy_within(
            out["image_features"], out["text_features"], fabric.global_rank, fabric.world_size
        )
        loss_value, accuracy_value, norm_value, scale = exchange.means(
            fabric, loss, accuracy, own=(norm, out["logit_scale"])
        )
        if not (math.isfinite(loss_value) and math.isfinite(norm_value)):
            _stop(job, telemetry, loss_value, norm_value)
        job.wrapped_optimiser.step()
        job.optimiser.zero_grad()
        with torch.no_grad():
            model.logit_scale.clamp_(0, MAX_LOGIT_SCALE)

        samples = count * fabric.world_size
        progress.step, progress.samples = step, progress.samples + samples
        took = time.perf_counter() - started
        record = {
            "step": step,
            "epoch": epoch + 1,
            "samples": progress.samples,
            "loss": loss_value,
            "accuracy": accuracy_value,
            "lr": lr,
            "logit_scale": scale,
            "grad_norm": norm_value,
            "samples_per_second": samples / (wait + took),
            "data_wait": wait / (wait + took),
            "lambda": _numbers(model.lambdas()),
        }
        _, failed = exchange.tried(partial(telemetry.step, record))
        every = (recipe.checkpoint_every, recipe.keep_every)
        due = any(steps and step % steps == 0 for steps in every)
        if due and progress.batch < job.loader.batches_per_epoch:
            job.save(telemetry)
    faults = [found for found in exchange.share_or_raise(fabric, failed or fault) if found]
    if whole and progress.samples == before and faults:
        whose = " that a process reads" if fabric.world_size > 1 else ""
        raise exchange.everybodys(
            InputError(f"every sample in {job.loader.corpus}{whose} is broken, the first one: {faults[0]}")
        )


def _numbers(lambdas: dict[str, Tensor]) -> dict[str, list[float]]:
    """The values of each tensor [layers]: a GPU is waited for once."""
    told = [values for values in lambdas.values() if len(values)]
    numbers = iter(torch.cat(told).tolist() if told else [])
    return {tower: list(islice(numbers, len(values))) for tower, values in lambdas.items()}


def _validate(job: _Job, data: EvaluationSet, tokenizer: Tokenizer, telemetry: Telemetry | Silent) -> bool:
    """Measure and tell; whether the model is the best so far. An error loses no step: they are saved before it is
    raised."""
    progress = job.progress

    def measure() -> Validation:
        with telemetry.pause("validation"):
            found = validate(job.fabric, job.model, data, tokenizer, job.recipe)
        place = {"step": progress.step, "epoch": progress.epoch, "samples": progress.samples}
        telemetry.validation(place | found.scores | {"map_correlation": found.map_correlation})
        return found

    try:
        found = exchange.all_do(job.fabric, measure)
    except NotFiniteError:
        _withdraw(job, progress.step, "embeddings of the validation split are not finite")
    except DiffCLIPError:
        job.save(telemetry)
        raise
    job.skipped |= {fault.name: fault for fault in found.faults}
    score = found.scores["score"]
    best = progress.best_score is None or score > progress.best_score
    progress.best_score = score if best else progress.best_score
    return best


def _leave(job: _Job, telemetry: Telemetry | Silent) -> NoReturn:
    """Save and stop, because a process was asked to."""
    what = f"{job.run}: asked to stop"
    if not job.progress.step:
        raise exchange.everybodys(StoppedError(f"{what} before its first step: start it again"))
    kept = job.save(telemetry)
    what = f"{what} at step {job.progress.step}, saved in {kept}: go on with --resume"
    raise exchange.everybodys(StoppedError(what))


def _stop(job: _Job, telemetry: Telemetry | Silent, loss: float, norm: float) -> NoReturn:
    """Keep the last state that is known to be good, and raise.

    A loss that is not finite says that the state before this step is bad (or its batch is): then the checkpoint before
    it stays. A gradient that is not finite leaves a state whose loss was still finite: that one is kept.
    """
    progress = job.progress
    step, what = progress.step + 1, f"the loss is {loss}, the gradient's norm {norm}"
    if not (math.isfinite(loss) and progress.step):
        _withdraw(job, step, what)
    progress.batch -= 1  # the failing batch is not done
    _give_up(step, what, job.save(telemetry))


def _withdraw(job: _Job, step: int, what: str) -> NoReturn:
    """Give up in `step`, without the state now, which proved bad."""
    withdraw = partial(withdraw_checkpoint, job.run, job.progress.step)
    _give_up(step, what, exchange.first_does(job.fabric, withdraw))


def _give_up(step: int, what: str, kept: Path | None) -> NoReturn:
    state = f"the last good state is {kept}" if kept else "there is no earlier checkpoint"
    way_out = "start again with a lower lr, a longer warm-up or clip_grad_norm=1"
    raise exchange.everybodys(DivergedError(f"step {step}: {what}; {state}: {way_out}", step))


def _timed(batches: Iterator[Batch]) -> Iterator[tuple[float, Any]]:
    """Each batch with the seconds that were spent waiting for it; an error in its place is the last."""
    while True:
        started = time.perf_counter()
        try:
            batch = next(batches, None)
        except DiffCLIPError as error:
            yield time.perf_counter() - started, error
            return
        if batch is None:
            return
        yield time.perf_counter() - started, batch
