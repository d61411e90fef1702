"""The log of a run: the records in `metrics.jsonl` and `validation.jsonl`, other loggers (loggers.py), and progress on
stderr."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from diffclip.errors import DiffCLIPError, InputError, StoppedError
from diffclip.files import check_writable, explain_disk_errors, write_text
from diffclip.training.losses import ACCURACY
from diffclip.training.run_folder import FINISHED, METRICS_FILE, VALIDATION_FILE, read_lines, record_end

# seconds between progress lines without a terminal
_LINE_EVERY = 15.0


class RunLogger:
    """Write the records of a run's steps and validations, and show progress, in the first process of a run.

    Each record of a step gets `time` (unix seconds) and `seconds_left` (None before there is a rate). If a run is
    resumed after step `done` of `steps`, its records of later steps are removed, so that each step appears once.
    `about.json` gets the end of this start. `loggers` maps names to functions that make loggers of Lightning's; if one
    cannot be made or used, one line says so and the run goes on without it. A `metrics.jsonl` that cannot be written
    raises `InputError`.
    """

    def __init__(
        self,
        run: Path,
        label: str,
        steps: int,
        done: int = 0,
        loggers: Mapping[str, Callable[[], Any]] | None = None,
    ) -> None:
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TextColumn

        self._run, self._label, self._steps, self.reached = run, label, steps, done
        self._ended: LastSteps = deque(maxlen=51)
        for name in (METRICS_FILE, VALIDATION_FILE):
            check_writable(run / name)
            drop_records_after(run / name, done)
        self._loggers: dict[str, Any] = {}
        for name, make in (loggers or {}).items():
            with self._dropping(name):
                self._loggers[name] = make()
        self._console = Console(file=sys.stderr)
        columns = (MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
        self._bar = Progress(*columns, console=self._console)
        self._task = self._bar.add_task(label, total=steps, completed=done)
        self._last_line = time.monotonic()

    def __enter__(self) -> RunLogger:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        for name in list(self._loggers):
            with self._dropping(name):
                self._loggers[name].finalize("failed" if error else "success")
        try:
            with explain_disk_errors(self._run):
                record_end(
                    self._run, format_error(error) if error else FINISHED, self.reached, _peak_memory()
                )
        except (OSError, InputError):
            if error is None:  # the run's own error must not be hidden by one of a full disk
                raise

    def step(self, record: dict[str, Any]) -> None:
        """Write and show one training step."""
        step = self.reached = record["step"]
        self._ended.append((step, record["samples"], time.monotonic()))
        rate, left = pace(self._ended, self._steps)
        times = {"time": round(time.time(), 3), "seconds_left": None if left is None else round(left, 1)}
        self._log(METRICS_FILE, record | times, _numbers(record | times, "train", ("step", "time")))

        accuracy = next(value for key, value in record.items() if key in ACCURACY.values())
        progress = (
            f"loss {record['loss']:.3f}  accuracy {accuracy:.0%}  "
            f"{rate or record['samples_per_second']:,.0f} samples/s  data wait {record['data_wait']:.0%}"
        )
        if left is not None:
            progress += f"  {duration(left)} left"
        self._bar.update(self._task, completed=step, description=progress)
        due = time.monotonic() - self._last_line > _LINE_EVERY or step == self._steps
        if due and not self._console.is_terminal:
            self._last_line = time.monotonic()
            print(f"{self._label}: step {step}/{self._steps}  {progress}", file=sys.stderr)

    def validation(self, record: dict[str, Any]) -> None:
        """Write and show one validation."""
        left_out = ("step", "epoch", "samples", "images", "captions")
        self._log(VALIDATION_FILE, record, _numbers(record, "validation", left_out))
        self._console.print(
            f"{self._label}: epoch {record['epoch']}: validation R@5 "
            f"text→image {record['image_retrieval_recall@5']:.1%}, "
            f"image→text {record['text_retrieval_recall@5']:.1%}, mean recall {record['score']:.1%}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def _log(self, name: str, record: Mapping[str, Any], numbers: dict[str, float]) -> None:
        """Write `record` to the file `name`, and its `numbers` to the other loggers."""
        with explain_disk_errors(self._run / name), (self._run / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        for logger_name in list(self._loggers):
            with self._dropping(logger_name):
                self._loggers[logger_name].log_metrics(numbers, record["step"])

    @contextmanager
    def _dropping(self, name: str) -> Iterator[None]:
        """Drop the logger `name` if the block fails, with one line about it."""
        try:
            yield
        except StoppedError:
            raise
        except Exception as error:  # libraries raise many kinds of errors; none may stop a run
            self._loggers.pop(name, None)
            reason = format_error(error)[:300]
            print(f"diffclip: {name} cannot be used, the run goes on without it: {reason}", file=sys.stderr)


def _peak_memory() -> int:
    """Return the peak memory of this process in bytes: on its GPU if it uses one."""
    unit = 1 if sys.platform == "darwin" else 1024  # `ru_maxrss` is in bytes on macOS, else in KiB
    resident = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return torch.cuda.max_memory_allocated() or resident


def format_error(error: BaseException) -> str:
    """Describe `error` in one line, with its type unless it is a `DiffCLIPError`."""
    kind = "" if isinstance(error, DiffCLIPError) else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}".split()).removesuffix(":")


def _numbers(record: Mapping[str, Any], prefix: str, left_out: Iterable[str]) -> dict[str, float]:
    """Return the numbers of a record by name, also those of single layers."""
    numbers = {
        f"{prefix}/{name}": value
        for name, value in record.items()
        if name not in left_out and isinstance(value, int | float)
    }
    layers = {
        f"{name}/{tower}/{layer}": value
        for name in ("lambda", "map_correlation")
        for tower, values in record.get(name, {}).items()
        for layer, value in enumerate(values)
    }
    return numbers | layers


def drop_records_after(file: Path, step: int) -> None:
    """Remove the records after `step` from `file`, and a line that was cut off."""
    if file.is_file():
        rows = [row for row in read_lines(file) if row["step"] <= step]
        write_text(file, "".join(json.dumps(row) + "\n" for row in rows))


LastSteps = deque[tuple[int, float, float]]
"""The last steps as (number, samples so far in the whole run, end time). `deque(maxlen=51)` spans 50 steps."""


def pace(ended: LastSteps, steps: int) -> tuple[float | None, float | None]:
    """Return samples per second over all processes, and the seconds that a run of `steps` steps still takes. Pauses
    between steps count. Both are None until this start has made two steps."""
    (first, first_samples, start), (last, samples, now) = ended[0], ended[-1]
    if first == last or now == start:
        return None, None
    return (samples - first_samples) / (now - start), (steps - last) * (now - start) / (last - first)


def duration(seconds: float) -> str:
    """Format seconds as "45 s", "12 min", "3 h 05 min" or "2 d 04 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"
