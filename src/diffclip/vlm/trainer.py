"""Transformers' Trainer for one stage: the order of samples, metrics, two checkpoints, and errors in one line."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from diffclip.errors import DiffCLIPError, InputError, StoppedError
from diffclip.files import explain_disk_errors
from diffclip.training.distributed import raised_by_all
from diffclip.training.logging import LastSteps, drop_records_after, duration, pace
from diffclip.training.run_folder import METRICS_FILE
from diffclip.training.stopping import StopRequest
from diffclip.vlm.dataset import GroupedOrder, collate
from diffclip.vlm.run_folder import checkpoints

_LINE_EVERY = 15.0  # seconds


class StageTrainer(Trainer):
    """Train in the folder `run` with a given order of samples, and report errors in one line.

    `dataset` has items for `collate`, which pads with the token `padding`. `settings` go to `TrainingArguments`.
    """

    model: Any

    def __init__(
        self,
        run: Path,
        model: Any,
        dataset: Dataset[dict[str, Any]],
        padding: int,
        order: GroupedOrder | SequentialSampler,
        stop: StopRequest,
        **settings: Any,
    ) -> None:
        cuda = torch.cuda.is_available()
        arguments = TrainingArguments(
            output_dir=str(run),
            ddp_find_unused_parameters=False,  # every batch reaches every trained weight
            dataloader_pin_memory=cuda,
            remove_unused_columns=False,
            save_strategy="steps",
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
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=dataset,
            data_collator=partial(collate, padding=padding),
            callbacks=[Reporter(run, order, stop)],
        )
        self._run, self._order = run, order
        self.remove_callback(PrinterCallback)
        # the Trainer has set this key, and Llava would pass it to the vision tower
        vars(self.model.config).pop("use_cache", None)

    def fit(self, resume: bool) -> None:
        """Train to the end, from the last checkpoint of the run if `resume` is set."""
        folders = checkpoints(self._run) if resume else []
        with explain_disk_errors(self._run):
            try:
                self.train(resume_from_checkpoint=str(folders[-1]) if folders else None)
            except InputError as error:
                # the DataLoader puts a worker's traceback before the message when it raises the worker's error again
                raise InputError(str(error).rstrip().rpartition("InputError: ")[2]) from error
            except torch.OutOfMemoryError as error:
                raise DiffCLIPError(
                    "a GPU's memory is too small: try a per_device_batch_size below "
                    f"{self.args.per_device_train_batch_size}, or gradient_checkpointing=true"
                ) from error
        if self.state.global_step < self.state.max_steps:
            line = f"asked to stop at step {self.state.global_step}, which is saved: go on with --resume"
            raise raised_by_all(self.args, StoppedError(f"{self._run}: {line}"))

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return self._order

    def _load_from_checkpoint(self, checkpoint: str, model: Any = None) -> None:
        """Load by the model's class, because Llava saves weights under older names, which the Trainer would ignore."""
        saved = type(self.model).from_pretrained(checkpoint, use_safetensors=True, dtype=torch.float32)
        self.model.load_state_dict(saved.state_dict())

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(self.model.model, "vision_tower"):
            self.model.model.vision_tower.eval()  # frozen, but the Trainer has set the whole model to training mode
        return super().compute_loss(model, inputs | {"use_cache": False}, *args, **kwargs)


class Reporter(TrainerCallback):
    """Write metrics, show progress, keep two checkpoints, and stop a run on a signal or a loss that is not finite.

    The first process alone writes RUN/metrics.jsonl, shows progress and removes checkpoints. A line has step, epoch,
    samples, loss, lr, grad_norm, samples_per_second, time and seconds_left. A resumed run first removes the lines of
    steps after its checkpoint. A signal to any of the processes makes all save and stop after the current step.
    """

    def __init__(self, run: Path, order: GroupedOrder | SequentialSampler, stop: StopRequest) -> None:
        self._run, self._order, self._stop = run, order, stop
        self._last_line = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop.saves = True
        self._batch_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        self._ended: LastSteps = deque(maxlen=51)
        self._add(state.global_step)
        if state.is_world_process_zero:
            drop_records_after(self._run / METRICS_FILE, state.global_step)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the epoch of the order here: in a resumed run of several processes the DataLoader does not set it."""
        if isinstance(self._order, GroupedOrder):
            # after a whole epoch state.epoch is exactly a whole number, because the Trainer adds n / n
            self._order.set_epoch(int(state.epoch))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        stops = torch.tensor(int(bool(self._stop.asked)), device=args.device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(stops)
        if stops:
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            # keep one more than the newest, in case the newest is not written to the end
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
                line = f"step {step}: {name} is {logs[name]}: start again with a lower lr"
                raise raised_by_all(args, DiffCLIPError(line))  # all processes have the same value
        if not state.is_world_process_zero:
            return
        self._add(step)
        rate, remaining = (value or 0.0 for value in pace(self._ended, state.max_steps))
        record = {
            "step": step,
            "epoch": state.epoch,
            "samples": min(step * self._batch_size, round((state.epoch or 0) * len(self._order))),
            "loss": logs["loss"],
            "lr": logs["learning_rate"],
            "grad_norm": logs.get("grad_norm"),
            "samples_per_second": round(rate, 2),
            "time": round(time.time(), 3),
            "seconds_left": round(remaining, 1),
        }
        with explain_disk_errors(self._run / METRICS_FILE), (self._run / METRICS_FILE).open("a") as file:
            file.write(json.dumps(record) + "\n")
        if time.monotonic() - self._last_line > _LINE_EVERY or step == state.max_steps:
            self._last_line = time.monotonic()
            print(
                f"{self._run}: step {step}/{state.max_steps}  loss {logs['loss']:.3f}  {rate:,.1f} samples/s  "
                f"{duration(remaining)} left",
                file=sys.stderr,
            )

    def _add(self, step: int) -> None:
        self._ended.append((step, step * self._batch_size, time.monotonic()))
