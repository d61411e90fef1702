"""What a run tells: a JSON-lines file with a record a step, TensorBoard, and the terminal."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from diffclip.errors import InputError
from diffclip.files import check_writable, disk_errors, write_text

METRICS_FILE, VALIDATION_FILE, TENSORBOARD_FOLDER = "metrics.jsonl", "validation.jsonl", "tensorboard"
# without a terminal, a line this often (seconds)
_LINE_EVERY = 15.0


class Telemetry:
    """Writes `metrics.jsonl`, `validation.jsonl` and `tensorboard/` in `run`, and shows progress on stderr.

    A run that is resumed after step `done` forgets what it wrote about later steps, so that each step stands once.
    """

    def __init__(self, run: Path, label: str, steps: int, done: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._run, self._label, self._steps = run, label, steps
        for name in (METRICS_FILE, VALIDATION_FILE):
            check_writable(run / name)
            _forget_after(run / name, done)
        with disk_errors(run / METRICS_FILE):
            self._metrics = (run / METRICS_FILE).open("a", encoding="utf-8")
        with disk_errors(run / TENSORBOARD_FOLDER):
            self._tensorboard = SummaryWriter(str(run / TENSORBOARD_FOLDER), purge_step=done + 1)
        self._console = Console(file=sys.stderr)
        self._bar = ProgressBar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(label, total=steps, completed=done, status="")
        self._started, self._started_at, self._last_line = time.monotonic(), done, time.monotonic()

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
        ):
            try:
                with disk_errors(self._run / name):
                    close()
            except (OSError, InputError) as failure:
                failures.append(failure)
        threading.excepthook = self._threads
        if failures and error is None:
            raise failures[0]

    def step(self, record: dict[str, Any]) -> None:
        """Write and show one training step."""
        with disk_errors(self._run / METRICS_FILE):
            self._metrics.write(json.dumps(record) + "\n")
            self._metrics.flush()
        step = record["step"]
        for name, value in record.items():
            if name == "lambda":
                for tower, values in value.items():
                    for layer, lam in enumerate(values):
                        self._scalar(f"lambda/{tower}/{layer}", lam, step)
            elif name != "step":
                self._scalar(f"train/{name}", value, step)
        status = (
            f"loss {record['loss']:.3f}  accuracy {record['accuracy']:.0%}  "
            f"{record['samples_per_second']:.0f} samples/s  data wait {record['data_wait']:.0%}"
        )
        self._bar.update(self._task, completed=step, status=status)
        now = time.monotonic()
        if not self._console.is_terminal and (now - self._last_line > _LINE_EVERY or step == self._steps):
            self._last_line = now
            left = (now - self._started) / (step - self._started_at) * (self._steps - step)
            print(f"{self._label}: step {step}/{self._steps}  {status}  {left:.0f} s left", file=sys.stderr)

    def validation(self, record: dict[str, Any]) -> None:
        """Write and show one validation."""
        file = self._run / VALIDATION_FILE
        with disk_errors(file):
            before = file.read_text(encoding="utf-8") if file.is_file() else ""
        write_text(file, before + json.dumps(record) + "\n")
        for name, value in record.items():
            if name not in ("step", "epoch", "samples", "pictures", "captions"):
                self._scalar(f"validation/{name}", value, record["step"])
        self.say(
            f"epoch {record['epoch']}: validation R@5 text→image {record['image_retrieval_recall@5']:.1%}, "
            f"image→text {record['text_retrieval_recall@5']:.1%}, mean recall {record['score']:.1%}"
        )

    def say(self, line: str) -> None:
        """Show one line above the progress bar."""
        self._console.print(f"{self._label}: {line}", highlight=False, markup=False, soft_wrap=True)

    def _scalar(self, name: str, value: float, step: int) -> None:
        with disk_errors(self._run / TENSORBOARD_FOLDER):
            self._tensorboard.add_scalar(name, value, step)

    def _failed_thread(self, failure: threading.ExceptHookArgs) -> None:
        """TensorBoard's thread fails in silence: what stopped it is raised where the next value is handed to it."""
        if not type(failure.thread).__module__.startswith("tensorboard."):
            self._threads(failure)


def _forget_after(file: Path, step: int) -> None:
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
