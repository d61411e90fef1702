"""What a run tells while it trains: a JSON line a step, and its progress on stderr."""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from transformers import TrainerCallback

from diffclip.errors import DiffCLIPError
from diffclip.files import disk_errors
from diffclip.training.pace import Pace, clock_time, duration
from diffclip.training.telemetry import METRICS_FILE, forget_after

# without a terminal, a line this often (seconds)
_LINE_EVERY = 15.0


class Telling(TrainerCallback):
    """Writes RUN/metrics.jsonl (step, epoch, samples, loss, lr, grad_norm, samples_per_second, time, seconds_left) and
    shows rate and time left, in the first process alone.

    A run that is resumed forgets what it wrote about steps after its checkpoint. A loss that is not finite ends it.
    """

    def __init__(self, run: Path, batch_size: int, samples: int) -> None:
        self._run, self._batch_size, self._samples = run, batch_size, samples
        self._ended = ExitStack()
        self._saving = ExitStack()
        self._last_line = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self._pace = Pace(state.max_steps, state.global_step)
        file = self._run / METRICS_FILE
        with disk_errors(file):
            forget_after(file, state.global_step)
            self._metrics = self._ended.enter_context(file.open("a", encoding="utf-8"))
        console = Console(file=sys.stderr)
        self._on_terminal = console.is_terminal
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(
            *columns, TextColumn("{task.fields[status]}"), console=console, disable=not self._on_terminal
        )
        self._ended.enter_context(self._bar)
        self._task = self._bar.add_task(
            str(self._run), total=state.max_steps, completed=state.global_step, status=""
        )

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not logs or "loss" not in logs:
            return  # the Trainer's summary at the end
        step = state.global_step
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                error = DiffCLIPError(f"step {step}: {name} is {logs[name]}: start again with a lower lr")
                error.shared = True  # they are all processes' numbers
                raise error
        if state.is_world_process_zero:
            samples = min(step * self._batch_size, round((state.epoch or 0) * self._samples))
            self._pace.step(step, samples)
            self._tell(state, logs, samples)
            if control.should_save:
                self._saving.enter_context(self._pace.pause("checkpoint"))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saving.close()

    def close(self) -> None:
        """Take the bar away and close the file."""
        with disk_errors(self._run / METRICS_FILE):
            self._ended.close()

    def _tell(self, state: Any, logs: dict[str, Any], samples: int) -> None:
        now, left, rate = time.time(), self._pace.seconds_left, self._pace.samples_per_second
        record = {
            "step": state.global_step,
            "epoch": state.epoch,
            "samples": samples,
            "loss": logs["loss"],
            "lr": logs["learning_rate"],
            "grad_norm": logs.get("grad_norm"),
            "samples_per_second": None if rate is None else round(rate, 2),
            "time": round(now, 3),
            "seconds_left": None if left is None else round(left, 1),
        }
        with disk_errors(self._run / METRICS_FILE):
            self._metrics.write(json.dumps(record) + "\n")
            self._metrics.flush()
        parts = [f"loss {logs['loss']:.3f}"]
        parts += [] if rate is None else [f"{rate:,.{0 if rate >= 10 else 1}f} samples/s"]
        parts += [] if left is None else [f"{duration(left)} left, ends {clock_time(now + left, now)}"]
        status = "  ".join(parts)
        self._bar.update(self._task, completed=state.global_step, status=status)
        due = time.monotonic() - self._last_line > _LINE_EVERY or state.global_step == state.max_steps
        if not self._on_terminal and due:
            self._last_line = time.monotonic()
            print(f"{self._run}: step {state.global_step}/{state.max_steps}  {status}", file=sys.stderr)
