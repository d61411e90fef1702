"""transformers' Trainer in a run folder: progress, stop signals, and errors in one line."""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from diffclip.errors import DiffCLIPError, InputError, RankError, StoppedError
from diffclip.files import explain_disk_errors
from diffclip.training.logging import duration
from diffclip.training.stopping import StopRequest
from diffclip.vlm.dataset import collate

_LINE_EVERY = 15.0  # seconds


def make_arguments(run: Path, **settings: Any) -> TrainingArguments:
    """Make the Trainer's arguments for a run; under torchrun this also connects the processes. A process that sees
    several GPUs raises `InputError`."""
    cuda = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(run),
        train_sampling_strategy="sequential",  # datasets are in the order of training
        ddp_find_unused_parameters=False,  # every batch reaches every trained weight
        dataloader_pin_memory=cuda,
        remove_unused_columns=False,
        save_strategy="steps",
        save_total_limit=2,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not cuda,
        **settings,
    )
    if arguments.n_gpu > 1:
        raise InputError(
            f"one process sees {arguments.n_gpu} GPUs: start one for each with torchrun --nproc-per-node "
            f"{arguments.n_gpu} -m diffclip.cli -- vlm train …, or choose a GPU with CUDA_VISIBLE_DEVICES=0"
        )
    return arguments


def checkpoints(run: Path) -> list[Path]:
    """List the complete checkpoints, sorted by step: trainer_state.json, which is written last, can be read."""
    steps = {}
    for file in run.glob("checkpoint-*/trainer_state.json"):
        with suppress(OSError, ValueError):
            json.loads(file.read_text(encoding="utf-8"))
            steps[int(file.parent.name.partition("-")[2])] = file.parent
    return [steps[step] for step in sorted(steps)]


class _Trainer(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if "fault" in inputs:  # of a sample; an error in a worker would arrive as the text of its traceback
            raise inputs["fault"]
        return super().compute_loss(model, inputs, *args, **kwargs)


def fit(
    run: Path,
    model: Any,
    dataset: Dataset[dict[str, Any]],
    padding: int,
    arguments: TrainingArguments,
    stop: StopRequest,
    resume: bool,
) -> Trainer:
    """Train `model` in the folder `run` on items for `collate`, which pads with `padding`; with `resume`, from the last
    complete checkpoint on.

    Raises:
        InputError: a sample cannot be used, or the disk is full.
        StoppedError: a signal asked the run to stop; its state is saved.
        DiffCLIPError: the loss is not finite, or the GPU's memory is too small.
    """
    if arguments.use_cpu:
        # in bfloat16, the backward pass of torch's fused attention takes two thirds of a step on a CPU
        getattr(model.model, "language_model", model).set_attn_implementation("eager")
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        data_collator=partial(collate, padding=padding),
        callbacks=[Reporter(run, stop)],
    )
    trainer.remove_callback(PrinterCallback)
    folders = checkpoints(run) if resume else []
    if folders:
        # by the model's class: Llava saves weights under older names, which the Trainer would silently ignore
        saved = type(model).from_pretrained(folders[-1], use_safetensors=True, dtype=torch.float32)
        model.load_state_dict(saved.state_dict())
    with explain_disk_errors(run):
        try:
            trainer.train(resume_from_checkpoint=str(folders[-1]) if folders else None)
        except torch.OutOfMemoryError as error:
            raise RankError(
                "a GPU's memory is too small: try a per_device_batch_size below "
                f"{arguments.per_device_train_batch_size}, or gradient_checkpointing=true"
            ) from error
        except (SafetensorError, RuntimeError) as error:  # without an errno
            if set(run.glob("checkpoint-*")) == set(checkpoints(run)):
                raise
            line = f"cannot write a checkpoint in {run}: free some space or choose another place"
            raise InputError(line) from error
    if trainer.state.global_step < trainer.state.max_steps:
        line = f"asked to stop at step {trainer.state.global_step}, which is saved: go on with --resume"
        raise StoppedError(f"{run}: {line}")
    return trainer


class Reporter(TrainerCallback):
    """Show progress, and stop a run on a signal or a loss that is not finite.

    A signal to any of the processes makes all save and stop after the current step.
    """

    def __init__(self, run: Path, stop: StopRequest) -> None:
        self._run, self._stop = run, stop
        self._last_line = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._stop.saves = True
        self._first_step, self._started = state.global_step, time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        stops = torch.tensor(int(bool(self._stop.asked)), device=args.device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(stops)
        if stops:
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, **passed: Any) -> None:
        logs = passed["logs"]
        if "loss" not in logs:
            return  # the Trainer's summary at the end
        step, loss, norm, now = state.global_step, logs["loss"], logs.get("grad_norm"), time.monotonic()
        if not math.isfinite(loss) or not math.isfinite(norm or 0.0):
            line = f"step {step}: loss is {loss}, grad_norm {norm}: start again with a lower lr"
            raise DiffCLIPError(line)  # all processes have the same values
        if state.is_world_process_zero and (now - self._last_line > _LINE_EVERY or step == state.max_steps):
            self._last_line = now
            seconds = (now - self._started) / (step - self._first_step)  # of a step
            samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size  # of a step
            print(
                f"{self._run}: step {step}/{state.max_steps}  loss {loss:.3f}  {samples / seconds:,.1f} samples/s  "
                f"{duration(seconds * (state.max_steps - step))} left",
                file=sys.stderr,
            )
