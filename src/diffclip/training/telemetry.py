"""What a run tells: a JSON-lines file with a record a step, TensorBoard, Weights & Biases, and the terminal."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from diffclip.errors import DiffCLIPError, InputError
from diffclip.files import check_writable, disk_errors, write_text
from diffclip.training.about import ABOUT_FILE, end_start
from diffclip.training.pace import Pace, clock_time, duration
from diffclip.training.weights_and_biases import WeightsAndBiases

METRICS_FILE, VALIDATION_FILE, TENSORBOARD_FOLDER = "metrics.jsonl", "validation.jsonl", "tensorboard"
# without a terminal, a line this often (seconds)
_LINE_EVERY = 15.0
# steps; λ of each layer moves slowly, and would be most of what TensorBoard has to read
_LAMBDAS_EVERY = 10


class _TwoLines(ProgressBar):
    """A bar with its numbers beneath, so that both fit into 80 columns."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            elapsed = timedelta(seconds=int(task.elapsed or 0))
            yield Text(f"{elapsed}  {task.fields['status']}", no_wrap=True, overflow="ellipsis")


class Telemetry:
    """Writes `metrics.jsonl`, `validation.jsonl` and `tensorboard/` in `run`, and shows progress on stderr.

    Each record of a step gets `time` (unix seconds) and `seconds_left` (None before there is a rate).
    A run that is resumed after step `done` forgets what it wrote about later steps, so that each step stands once.
    λ goes to TensorBoard and Weights & Biases every tenth step.

    Args:
        run: the folder.
        label: stands before each line.
        steps: of the whole run.
        done: steps that were made before this start.
        steps_per_epoch: with the next two, says which pauses are still to come.
        validate_every: epochs; None: there are no validations.
        checkpoint_every: steps; None: once an epoch.
        wandb: the project at Weights & Biases that is told as well.
        about: facts of this start, as `add_start` got them; how it ends is added to them in `about.json`.

    Raises:
        InputError: a file cannot be written, or Weights & Biases is asked for and cannot be used.
    """

    def __init__(
        self,
        run: Path,
        label: str,
        steps: int,
        done: int = 0,
        *,
        steps_per_epoch: int | None = None,
        validate_every: int | None = None,
        checkpoint_every: int | None = None,
        wandb: str | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._run, self._label, self._steps, self._step = run, label, steps, done
        self._first = done + 1
        self._has_about = about is not None
        self._pace = Pace(steps, done, steps_per_epoch, validate_every, checkpoint_every)
        self._console = Console(file=sys.stderr)
        for name in (METRICS_FILE, VALIDATION_FILE):
            check_writable(run / name)
            forget_after(run / name, done)
        self._wandb = WeightsAndBiases(run, wandb, done, about, self.say) if wandb else None
        with disk_errors(run / METRICS_FILE):
            self._metrics = (run / METRICS_FILE).open("a", encoding="utf-8")
        with disk_errors(run / TENSORBOARD_FOLDER):
            self._tensorboard: Any = SummaryWriter(str(run / TENSORBOARD_FOLDER), purge_step=done + 1)
        self._bar = _TwoLines(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(label, total=steps, completed=done, status="", left="")
        self._last_line = time.monotonic()

    def __enter__(self) -> Telemetry:
        self._threads = threading.excepthook
        threading.excepthook = self._failed_thread
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        # each writes what it still holds, which a full disk refuses once more
        failures = []
        for name, close in (
            (METRICS_FILE, self._metrics.close),
            (TENSORBOARD_FOLDER, self._tensorboard.close),
            (ABOUT_FILE, lambda: self._end(error)),
        ):
            try:
                with disk_errors(self._run / name):
                    close()
            except (OSError, InputError) as failure:
                failures.append(failure)
        if self._wandb:
            self._wandb.close(failed=error is not None)
        threading.excepthook = self._threads
        if failures and error is None:
            raise failures[0]

    def step(self, record: dict[str, Any]) -> None:
        """Write and show one training step."""
        step = self._step = record["step"]
        self._pace.step(step, record["samples"], record["data_wait"])
        now, left = time.time(), self._pace.seconds_left
        record = record | {"time": round(now, 3), "seconds_left": None if left is None else round(left, 1)}
        with disk_errors(self._run / METRICS_FILE):
            self._metrics.write(json.dumps(record) + "\n")
            self._metrics.flush()
        lambdas = step in (self._first, self._steps) or step % _LAMBDAS_EVERY == 0
        self._tell(_numbers(record, "train", ("step", "time"), by_layer=lambdas), step)

        rate, wait = self._pace.samples_per_second, self._pace.data_wait
        status = (
            f"loss {record['loss']:.3f}  accuracy {record['accuracy']:.0%}  "
            f"{record['samples_per_second'] if rate is None else rate:,.0f} samples/s  "
            f"data wait {record['data_wait'] if wait is None else wait:.0%}"
        )
        until = "" if left is None else f"{duration(left)} left, ends {clock_time(now + left, now)}"
        self._bar.update(self._task, completed=step, status=status, left=until)
        if not self._console.is_terminal and (
            time.monotonic() - self._last_line > _LINE_EVERY or step == self._steps
        ):
            self._last_line = time.monotonic()
            print("  ".join(filter(None, (self._where(), status, until))), file=sys.stderr)

    def validation(self, record: dict[str, Any]) -> None:
        """Write and show one validation."""
        file = self._run / VALIDATION_FILE
        with disk_errors(file):
            before = file.read_text(encoding="utf-8") if file.is_file() else ""
        write_text(file, before + json.dumps(record) + "\n")
        left_out = ("step", "epoch", "samples", "pictures", "captions")
        self._tell(_numbers(record, "validation", left_out, by_layer=True), record["step"])
        self.say(
            f"epoch {record['epoch']}: validation R@5 text→image {record['image_retrieval_recall@5']:.1%}, "
            f"image→text {record['text_retrieval_recall@5']:.1%}, mean recall {record['score']:.1%}"
        )

    @contextmanager
    def pause(self, kind: str) -> Iterator[None]:
        """What happens within the block ("validation", "checkpoint") is no part of a step; the bar says so."""
        before = self._bar.tasks[0].fields["status"]
        self._bar.update(self._task, status=f"{before}  ({kind})" if before else kind)
        try:
            with self._pace.pause(kind):
                yield
        finally:
            self._bar.update(self._task, status=before)

    def say(self, line: str) -> None:
        """Show one line above the progress bar."""
        self._console.print(f"{self._label}: {line}", highlight=False, markup=False, soft_wrap=True)

    def _where(self) -> str:
        return f"{self._label}: step {self._step}/{self._steps}"

    def _tell(self, numbers: dict[str, float], step: int) -> None:
        """TensorBoard gets one event with all numbers, which takes a tenth of the time of one event each."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        with disk_errors(self._run / TENSORBOARD_FOLDER):
            self._tensorboard.file_writer.add_summary(Summary(value=values), step)
        if self._wandb:
            self._wandb.log(numbers, step)

    def _end(self, error: BaseException | None) -> None:
        if self._has_about:
            how = "finished" if self._step >= self._steps else "stopped"
            if error is not None:
                # those of our own say it in a line
                name = "" if isinstance(error, DiffCLIPError) else f"{type(error).__name__}: "
                how = " ".join(f"{name}{error}".split()).removesuffix(":")
            end_start(self._run, how, self._step)

    def _failed_thread(self, failure: threading.ExceptHookArgs) -> None:
        """TensorBoard's thread fails in silence: what stopped it is raised where the next value is handed to it."""
        if not type(failure.thread).__module__.startswith("tensorboard."):
            self._threads(failure)


class Silent:
    """What processes other than the first tell: nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def step(self, record: dict[str, Any]) -> None:
        pass

    def validation(self, record: dict[str, Any]) -> None:
        pass

    def pause(self, kind: str) -> AbstractContextManager[None]:
        return nullcontext()

    def say(self, line: str) -> None:
        pass


def _numbers(
    record: Mapping[str, Any], prefix: str, left_out: tuple[str, ...], by_layer: bool
) -> dict[str, float]:
    """The numbers of a record by the names that TensorBoard and Weights & Biases show them under, those of single
    layers if `by_layer`."""
    numbers = {
        f"{prefix}/{name}": value
        for name, value in record.items()
        if name not in left_out and isinstance(value, int | float)
    }
    if by_layer:
        numbers |= {
            f"{name}/{tower}/{layer}": value
            for name in ("lambda", "map_correlation")
            for tower, values in record.get(name, {}).items()
            for layer, value in enumerate(values)
        }
    return numbers


def forget_after(file: Path, step: int) -> None:
    """Keep the records of `file` up to `step`; a line that was cut off goes too."""
    if not file.is_file():
        return
    kept = []
    with disk_errors(file):
        text = file.read_text(encoding="utf-8")
    for line in text.splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue
    write_text(file, "".join(kept))
