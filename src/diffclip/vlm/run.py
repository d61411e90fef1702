"""The folder of a run: recipe.yaml, metrics.jsonl, checkpoint-N (the Trainer's) and, at the end, model."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO, Any

import torch
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback

from diffclip.errors import DiffCLIPError, InputError
from diffclip.files import disk_errors, write_text
from diffclip.training.launch import StopRequest
from diffclip.training.logging import Ended, duration, forget_after, pace
from diffclip.training.run_folder import LOCK_FILE, METRICS_FILE, RECIPE_FILE, lock_folder
from diffclip.vlm.dataset import GroupedOrder
from diffclip.vlm.files import MODEL_FOLDER
from diffclip.vlm.recipe import VLMRecipe, read_vlm_recipe, to_yaml

# keys that change the numbers of a run by no more than rounding, so a resumed run may have other values
_FREE_KEYS = {"gradient_checkpointing", "workers"}
_FREE_STAGE_KEYS = {"json", "images", "per_device_batch_size", "save_every", "start"}
_SAMPLES_FILE = "conversations.sha256"
_LINE_EVERY = 15.0  # seconds


def is_finished(run: Path) -> bool:
    """Return whether the run in this folder has saved its model."""
    return (run / MODEL_FOLDER).is_dir() and (run / RECIPE_FILE).is_file()


def checkpoints(run: Path) -> list[Path]:
    """List the whole checkpoints by their steps: those in which trainer_state.json, written last, can be read.

    A folder that a user keeps beside them, such as checkpoint-500-keep, is not listed.
    """
    steps = {}
    for file in run.glob("checkpoint-*/trainer_state.json"):
        number = file.parent.name.removeprefix("checkpoint-")
        try:
            json.loads(file.read_text(encoding="utf-8"))
            steps[int(number)] = file.parent
        except (OSError, ValueError):
            continue
    return [steps[step] for step in sorted(steps)]


def check_run(recipe: VLMRecipe, run: Path, resume: bool) -> None:
    """Check, without writing anything, that a run of `recipe`, which has one stage, may start or go on in `run`.

    Raises:
        InputError: the folder holds other files, a run without `resume`, or with it a run of another recipe.
    """
    with disk_errors(run):
        found = {path.name for path in run.iterdir()} - {LOCK_FILE} if run.exists() else set()
    if not resume or RECIPE_FILE not in found:
        if not resume and (is_finished(run) or checkpoints(run)):
            raise InputError(
                f"{run} holds a run already: add --resume to go on with it, or choose another --run"
            )
        # a run that ended before its first checkpoint leaves these files
        others = {name for name in found if not name.startswith("checkpoint-")}
        if others - {RECIPE_FILE, METRICS_FILE, _SAMPLES_FILE} or (found and RECIPE_FILE not in found):
            raise InputError(f"{run} holds other files: choose a new or an empty folder for --run")
        return
    started = read_vlm_recipe(run / RECIPE_FILE)
    if (started.stage1 is None) != (recipe.stage1 is None):
        stage = 1 if started.stage1 is not None else 2
        raise InputError(f"{run} holds a run of stage {stage}: give --stage {stage}, or choose another --run")
    before = _deciding(started)
    for key, value in _deciding(recipe).items():
        if before[key] != value:
            raise InputError(
                f"{run} was started with {key}={before[key]}, not {value}: resume with the same recipe"
            )


def claim_run(recipe: VLMRecipe, run: Path, samples: str) -> IO[str]:
    """Make the folder that `check_run` has checked, and keep other processes out until the returned handle is closed.

    Args:
        samples: digest of the conversations, whose file may have moved.

    Raises:
        InputError: another process trains there, or the run was started with other conversations.
    """
    with disk_errors(run):
        run.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(run)
    file, whole = run / _SAMPLES_FILE, checkpoints(run)
    for folder in run.glob(
        "checkpoint-*"
    ):  # cut off while it was written, perhaps at a step that does not come again
        if folder.name.partition("-")[2].isdecimal() and folder not in whole:
            shutil.rmtree(folder)
    if not whole:
        write_text(run / RECIPE_FILE, to_yaml(recipe))
        write_text(file, samples)
    elif file.is_file() and file.read_text() != samples:
        raise InputError(f"{run} was started with other conversations: resume with the same JSON")
    return lock


class Reporter(TrainerCallback):
    """Write RUN/metrics.jsonl, show progress and keep two checkpoints, in the first process alone; end a run whose loss
    is not finite; save and stop after the step in which a signal came to any of the processes.

    A line has step, epoch, samples, loss, lr, grad_norm, samples_per_second, time and seconds_left. A resumed run
    first removes the lines of steps after its checkpoint.
    """

    def __init__(self, run: Path, order: GroupedOrder | SequentialSampler, stop: StopRequest) -> None:
        self._run, self._order, self._stop = run, order, stop
        self._last_line = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop.saves = True
        self._batch_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        self._ended: Ended = deque(maxlen=51)
        self._add(state.global_step)
        if state.is_world_process_zero:
            forget_after(self._run / METRICS_FILE, state.global_step)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell the order its epoch: the DataLoader of a resumed run of several processes does not reach it."""
        if isinstance(self._order, GroupedOrder):
            # epochs that are done count as whole numbers exactly: the Trainer adds n / n
            self._order.set_epoch(int(state.epoch))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        asked = torch.tensor(int(bool(self._stop.asked)), device=args.device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(asked)
        if asked:
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            # beside the newest one more, in case the newest is cut off
            for folder in checkpoints(self._run)[:-2]:
                shutil.rmtree(folder, ignore_errors=True)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not logs or "loss" not in logs:
            return  # the Trainer's summary at the end
        step = state.global_step
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                error = DiffCLIPError(f"step {step}: {name} is {logs[name]}: start again with a lower lr")
                error.shared = True  # all processes have the same number
                raise error
        if not state.is_world_process_zero:
            return
        self._add(step)
        rate, left = (one or 0.0 for one in pace(self._ended, state.max_steps))
        record = {
            "step": step,
            "epoch": state.epoch,
            "samples": min(step * self._batch_size, round((state.epoch or 0) * len(self._order))),
            "loss": logs["loss"],
            "lr": logs["learning_rate"],
            "grad_norm": logs.get("grad_norm"),
            "samples_per_second": round(rate, 2),
            "time": round(time.time(), 3),
            "seconds_left": round(left, 1),
        }
        with disk_errors(self._run / METRICS_FILE), (self._run / METRICS_FILE).open("a") as file:
            file.write(json.dumps(record) + "\n")
        if time.monotonic() - self._last_line > _LINE_EVERY or step == state.max_steps:
            self._last_line = time.monotonic()
            print(
                f"{self._run}: step {step}/{state.max_steps}  loss {logs['loss']:.3f}  {rate:,.1f} samples/s  "
                f"{duration(left)} left",
                file=sys.stderr,
            )

    def _add(self, step: int) -> None:
        self._ended.append((step, step * self._batch_size, time.monotonic()))


def _deciding(recipe: VLMRecipe) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in recipe.model_dump(mode="json", by_alias=True).items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": own for inner, own in value.items() if inner not in _FREE_STAGE_KEYS}
        elif key not in _FREE_KEYS:
            flat[key] = value
    return flat
