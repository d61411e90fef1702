"""The training loop. `Trainer.train_epoch` is the step: batch, learning rate, forward, loss, backward, clip, step,
clamp, record, checkpoint. Between two records nothing is read from the device, so that a step never waits for it.

Fabric places the model, sets the precision and averages gradients over processes; every process runs this file.
`run.py` prepares what a `Trainer` holds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from diffclip.errors import DiffCLIPError, DivergedError, Fault, InputError, NotFiniteError, StoppedError
from diffclip.preprocess import normalize
from diffclip.training.accumulate import backward_in_parts
from diffclip.training.checkpoint import RunProgress, save_checkpoint
from diffclip.training.distributed import agreed_batches, clip_gradients, gather, mean_over_processes
from diffclip.training.losses import ACCURACY, accuracy_of, collect_logits, make_criterion
from diffclip.training.optimizer import MAX_LOGIT_SCALE, is_share, learning_rate
from diffclip.training.recipe import Recipe
from diffclip.training.stopping import StopRequest

if TYPE_CHECKING:
    from diffclip.data.loader import CaptionLoader
    from diffclip.model import CLIP
    from diffclip.training.logging import RunLogger
    from diffclip.training.validation import Validation


@dataclass
class Trainer:
    """A run in progress: the parts that its steps share, and the steps.

    `wrapped` and `wrapped_optimizer` are Fabric's wrappers of `model` and `optimizer`. `scorer` scores the model; all
    processes call it together. Only the first process has a `logger`. The keys of `skipped` are the samples that this
    process skipped.
    """

    recipe: Recipe
    run: Path
    fabric: Any
    stop: StopRequest
    loader: CaptionLoader
    scorer: Callable[[], Validation] | None
    model: CLIP
    wrapped: Any
    optimizer: torch.optim.AdamW
    wrapped_optimizer: Any
    progress: RunProgress
    logger: RunLogger | None = None
    skipped: dict[Fault, None] = field(default_factory=dict)
    # loss and gradient norm of the steps that have not been read from the device
    _unread: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    # since the last record: its time (later by the pauses), the seconds of waiting for data, and the samples
    _started: float = 0.0
    _waited: float = 0.0
    _samples: int = 0

    @property
    def steps(self) -> int:
        """The number of steps of the whole run."""
        return self.recipe.epochs * self.loader.batches_per_epoch

    def train(self) -> None:
        """Make the remaining epochs."""
        self._started = time.perf_counter()
        for epoch in range(self.progress.epoch, self.recipe.epochs):
            self.train_epoch(epoch)
            self.finish_epoch()

    def forward(self, images: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Compute features and logit scale for uint8 images [B, 3, S, S] and tokens [B, L]."""
        return self.wrapped(normalize(images, self.model.config.preprocess), tokens)

    def train_epoch(self, epoch: int) -> None:
        """Make the remaining steps of `epoch` (counted from 0)."""
        recipe, fabric, model, progress = self.recipe, self.fabric, self.model, self.progress
        rank, world = fabric.global_rank, fabric.world_size
        warmup_steps = round(recipe.warmup_epochs * self.loader.batches_per_epoch)
        criterion = make_criterion(recipe.loss, recipe.gather_with_grad, rank, world)
        without_sync = partial(fabric.no_backward_sync, self.wrapped)
        whole_epoch, samples_before = progress.batch == 0, progress.samples
        model.train()
        batches = agreed_batches(fabric, self.loader.epoch(epoch, start_batch=progress.batch), self.stop)
        for batch, waited, asked_to_stop in batches:
            self._waited += waited
            self.skipped |= dict.fromkeys(batch.faults)
            if asked_to_stop:
                saved = f"step {progress.step}, saved in {self.save()}"
                raise StoppedError(f"{self.run}: asked to stop at {saved}: go on with --resume")
            progress.batch += 1
            if not len(batch):  # all of its samples are broken
                continue
            step = progress.step + 1
            lr = learning_rate(step, self.steps, warmup_steps, recipe)
            for group in self.optimizer.param_groups:
                group["lr"] = lr

            with collect_logits(criterion, self._is_logged(step)) as logits:
                loss, out = backward_in_parts(  # forward, loss, backward; in parts of `micro_batch` samples
                    self.forward,
                    criterion,
                    batch.images,
                    batch.tokens,
                    batch.lengths,
                    fabric.backward,
                    recipe.micro_batch,
                    without_sync,
                )
            norm = clip_gradients(fabric, model, recipe.clip_grad_norm)
            self.wrapped_optimizer.step()
            self.optimizer.zero_grad()
            with torch.no_grad():
                model.logit_scale.clamp_(0, MAX_LOGIT_SCALE)

            progress.step, progress.samples = step, progress.samples + len(batch) * world
            self._samples += len(batch) * world
            self._unread.append((loss, norm))
            if self.logger:
                self.logger.reached = step
            if self._is_logged(step):
                self._log(epoch, lr, accuracy_of(recipe.loss, logits, rank), out["logit_scale"])
            if self._is_due() and progress.batch < self.loader.batches_per_epoch:
                self.save()
        if whole_epoch and progress.samples == samples_before:
            scope, first = "of one process " if world > 1 else "", self.all_skipped()[0]
            broken = f"every sample {scope}in {self.loader.pairs.tars} is broken (first: {first})"
            raise InputError(f"{broken}: mend or replace them")

    def finish_epoch(self) -> None:
        """Validate the model and save a checkpoint, if the recipe says so."""
        recipe, progress = self.recipe, self.progress
        epoch = progress.epoch + 1
        is_last = epoch == recipe.epochs
        is_best = (is_last or epoch % recipe.validate_every == 0) and self._score()
        # only now, so that a resumed run repeats a validation that failed
        progress.epoch, progress.batch = epoch, 0
        if is_best or is_last or recipe.checkpoint_every is None or self._is_due():
            self.save(is_best)

    def save(self, best: bool = False) -> Path:
        """Write a checkpoint, unless a step or a weight is not finite."""
        with self._paused():
            weights: list[Any] = list(self.model.parameters())
            own = [weight.to_local() if is_share(weight) else weight for weight in weights]
            finite = torch.stack([weight.detach().isfinite().all() for weight in own]).all()
            if min(mean_over_processes(self.fabric, self._read_steps([finite])[2:])) < 1:
                self._give_up(self.progress.step, "a weight is not finite")
            return save_checkpoint(self.fabric, self.run, self.model, self.optimizer, self.progress, best)

    def all_skipped(self) -> list[Fault]:
        """List the shards and samples that any process has skipped."""
        skipped = dict.fromkeys(self.loader.faults)  # the same in all processes
        for part in gather(self.fabric, self.skipped):
            skipped |= part
        return list(skipped)

    def _is_logged(self, step: int) -> bool:
        """True if a record of this step is written. The step of the last batch may be less than `steps`, as a broken
        batch has no step."""
        progress = self.progress
        is_last = progress.epoch * self.loader.batches_per_epoch + progress.batch == self.steps
        return step == 1 or is_last or step % self.recipe.log_every == 0

    def _log(self, epoch: int, lr: float, accuracy: Tensor, scale: Tensor) -> None:
        """Write the record of the step that has just been made."""
        lambdas = self.model.lambdas()
        numbers = self._read_steps([accuracy, scale, *lambdas.values()])
        loss, norm, own_accuracy, scale_value, *layers = numbers
        [mean_accuracy] = mean_over_processes(self.fabric, [own_accuracy])
        seconds, values = time.perf_counter() - self._started, iter(layers)
        record = {
            "step": self.progress.step,
            "epoch": epoch + 1,
            "samples": self.progress.samples,
            "loss": loss,
            ACCURACY[self.recipe.loss]: mean_accuracy,
            "lr": lr,
            "logit_scale": scale_value,
            "grad_norm": norm,
            "samples_per_second": self._samples / seconds,
            "data_wait": self._waited / seconds,
            "lambda": {tower: [next(values) for _ in lam] for tower, lam in lambdas.items()},
        }
        self._started, self._waited, self._samples = time.perf_counter(), 0.0, 0
        if self.logger:
            self.logger.step(record)

    def _read_steps(self, more: Sequence[Tensor]) -> list[float]:
        """Wait for the device and read, at once, what the steps since the last call left there, and `more`.

        Returns the loss and the gradient's norm of the last step (NaN if there was no step), then the numbers of `more`
        in this process. A loss or norm that is not finite raises `DivergedError` in all processes.
        """
        steps, self._unread = self._unread, []
        if not steps and not more:
            return []
        tensors = [value for step in steps for value in step] + list(more)
        numbers: list[float] = torch.cat([value.float().reshape(-1) for value in tensors]).tolist()
        norms = numbers[1 : 2 * len(steps) : 2]
        losses = mean_over_processes(self.fabric, numbers[: 2 * len(steps) : 2])
        last, first = self.progress.step, self.progress.step - len(steps) + 1
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), first):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                read = f" (found after steps {first} to {last})" if first < last else ""
                self._give_up(step, f"the loss is {loss}, the gradient's norm {norm}{read}")
        return [*(losses[-1:] or [math.nan]), *(norms[-1:] or [math.nan]), *numbers[2 * len(steps) :]]

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Leave the time of a block out of the rate."""
        before = time.perf_counter()
        yield
        self._started += time.perf_counter() - before

    def _is_due(self) -> bool:
        """True if the recipe wants a checkpoint after this step."""
        every = self.recipe.checkpoint_every
        return every is not None and self.progress.step % every == 0

    def _score(self) -> bool:
        """Measure and log the model; return whether it is the best so far."""
        if self.scorer is None:
            return False
        progress = self.progress
        self._read_steps([])
        try:
            with self._paused():
                result = self.scorer()
        except NotFiniteError:
            self._give_up(progress.step, "embeddings of the validation split are not finite")
        except DiffCLIPError:
            self.save()  # so that the finished steps are not lost
            raise
        if self.logger:
            position = {"step": progress.step, "epoch": progress.epoch + 1, "samples": progress.samples}
            self.logger.validation(position | result.scores | {"map_correlation": result.map_correlation})
        self.skipped |= dict.fromkeys(result.faults)
        score = result.scores["score"]
        best = progress.best_score is None or score > progress.best_score
        progress.best_score = score if best else progress.best_score
        return best

    def _give_up(self, step: int, reason: str) -> NoReturn:
        way_out = "start again with a lower lr, a longer warm-up or clip_grad_norm=1"
        raise DivergedError(f"step {step}: {reason}: {way_out}", step)
