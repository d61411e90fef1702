"""The log of a run: records in `metrics.jsonl` and `validation.jsonl`, progress on stderr, and other loggers.

Other loggers are Weights & Biases, and those that plugins register. A logger has `log_metrics(numbers, step)` and
`finalize(status)`, as Lightning's have.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from diffclip.errors import DiffCLIPError, InputError, StoppedError, require_group, unknown_name
from diffclip.files import check_writable, explain_disk_errors, write_text
from diffclip.training.losses import ACCURACY
from diffclip.training.recipe import Recipe, Wandb
from diffclip.training.run_folder import (
    FINISHED,
    METRICS_FILE,
    VALIDATION_FILE,
    read_lines,
    record_end,
    write_lines,
)

Maker = Callable[[Path, Mapping[str, Any]], Any]
_REGISTERED: dict[str, Maker] = {}
_LINE_EVERY = 15.0  # seconds between progress lines without a terminal
_RATE_SECONDS = 3600.0  # time that the rate is measured over


def register_logger(name: str) -> Callable[[Maker], Maker]:
    """Register a function that makes a logger from a run's folder and configuration, for `loggers: [NAME]` in a recipe.

    Example:
        @register_logger("tensorboard")
        def tensorboard(run, config):
            return TensorBoardLogger(run, name="tensorboard")  # of lightning.pytorch.loggers
    """

    def register(make: Maker) -> Maker:
        _REGISTERED[name] = make
        return make

    return register


def check_loggers(names: Iterable[str]) -> None:
    """Raise `InputError` if no plugin has registered one of the loggers `names`."""
    for name in names:
        if name not in _REGISTERED:
            raise unknown_name("logger", name, _REGISTERED, "a plugin registers it: --plugin FILE.py")


def logger_makers(
    recipe: Recipe, run: Path, done: int, config: Mapping[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Return the functions that make the loggers of a run, which goes on after step `done`, by name."""
    makers: dict[str, Callable[[], Any]] = {}
    if recipe.wandb is not None:
        makers["Weights & Biases"] = partial(_wandb_logger, run, recipe.wandb, done, config)
    return makers | {name: partial(_REGISTERED[name], run, config) for name in recipe.loggers}


class RunLogger:
    """Write the records of a run's steps and validations, and show progress, in the first process of a run.

    Each record of a step gets `time` (unix seconds) and `seconds_left` (None before there is a rate). If a run is
    resumed after step `done` of `steps`, its records of later steps are removed, so that each step appears once.
    `about.json` gets the end of this start. `loggers` maps names to functions that make loggers; if one cannot be made
    or used, one line says so and the run goes on without it. A `metrics.jsonl` that cannot be written raises
    `InputError`.
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
        for file in (run / METRICS_FILE, run / VALIDATION_FILE):
            check_writable(file)
            if file.is_file():  # also drops a line that was cut off
                write_lines(file, [row for row in read_lines(file) if row["step"] <= done])
        self._loggers: dict[str, Any] = {}
        for name, make in (loggers or {}).items():
            with self._dropping(name):
                self._loggers[name] = make()
        self._console = Console(file=sys.stderr)
        columns = (MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
        self._bar = Progress(*columns, console=self._console, speed_estimate_period=_RATE_SECONDS)
        self._task = self._bar.add_task(label, total=steps, completed=done)
        self._last_line = time.monotonic()

    def __enter__(self) -> RunLogger:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:  # without one, `stop` would print an empty line
            self._bar.stop()
        for name in list(self._loggers):
            with self._dropping(name):
                self._loggers[name].finalize("failed" if error else "success")
        # the run's own error must not be hidden by one of a full disk
        with suppress(*[OSError, InputError] if error else []), explain_disk_errors(self._run):
            # `ru_maxrss` is in bytes on macOS, else in KiB
            unit = 1 if sys.platform == "darwin" else 1024
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
            how = format_error(error) if error else FINISHED
            record_end(self._run, how, self.reached, torch.cuda.max_memory_allocated() or used)

    def step(self, record: dict[str, Any]) -> None:
        """Write and show one training step."""
        step = self.reached = record["step"]
        self._bar.update(self._task, completed=step)
        left = self._bar.tasks[0].time_remaining
        record = record | {"time": round(time.time(), 3), "seconds_left": left}
        self._log(METRICS_FILE, record, _numbers(record, "train", ("step", "time")))

        accuracy = next(value for key, value in record.items() if key in ACCURACY.values())
        progress = (
            f"loss {record['loss']:.3f}  accuracy {accuracy:.0%}  {record['samples_per_second']:,.0f} samples/s  "
            f"data wait {record['data_wait']:.0%}" + (f"  {duration(left)} left" if left is not None else "")
        )
        self._bar.update(self._task, description=progress)
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


def _wandb_logger(run: Path, settings: Wandb, done: int, config: Mapping[str, Any]) -> Any:
    """Make a logger for Weights & Biases. The folder keeps the id, so that a resumed run continues the same log."""
    require_group("wandb", "wandb")
    import wandb
    from lightning.pytorch.loggers import WandbLogger

    class Logger(WandbLogger):  # type: ignore[misc]
        def finalize(self, status: str) -> None:
            super().finalize(status)
            self.experiment.finish(exit_code=int(status != "success"))

    file = run / "wandb" / "id"
    if not done or not file.is_file():
        write_text(file, uuid.uuid4().hex[:16])
    logger = Logger(
        settings.name or run.resolve().name,
        run,
        id=file.read_text(encoding="utf-8"),
        **settings.model_dump(exclude={"name"}),
        resume="allow",
        settings=wandb.Settings(console="off", silent=True, save_code=False, x_disable_meta=True),
    )
    logger.log_hyperparams(dict(config))
    return logger


def _numbers(record: Mapping[str, Any], prefix: str, left_out: Iterable[str]) -> dict[str, float]:
    """Return the numbers of a record by name, also those of single layers."""
    known = {name: value for name, value in record.items() if isinstance(value, int | float)}
    numbers = {f"{prefix}/{name}": value for name, value in known.items() if name not in left_out}
    layers = {
        f"{name}/{tower}/{layer}": value
        for name in ("lambda", "map_correlation")
        for tower, values in record.get(name, {}).items()
        for layer, value in enumerate(values)
    }
    return numbers | layers


def format_error(error: BaseException) -> str:
    """Describe `error` in one line, with its type unless it is a `DiffCLIPError`."""
    kind = "" if isinstance(error, DiffCLIPError) else f"{type(error).__name__}: "
    return " ".join(f"{kind}{error}".split()).removesuffix(":")


def duration(seconds: float) -> str:
    """Format seconds as "45 s", "12 min", "3 h 05 min" or "2 d 04 h"."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"
