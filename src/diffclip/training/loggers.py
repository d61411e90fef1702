"""Loggers beside the run's own records: TensorBoard, Weights & Biases, and those that plugins register.

A logger has `log_metrics(numbers, step)` and `finalize(status)`, as Lightning's have.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from diffclip.errors import require_group, unknown_name
from diffclip.files import write_text
from diffclip.training.recipe import Wandb
from diffclip.training.run_folder import TENSORBOARD_FOLDER

Maker = Callable[[Path, Mapping[str, Any]], Any]
_REGISTERED: dict[str, Maker] = {}


def register_logger(name: str) -> Callable[[Maker], Maker]:
    """Register a function that makes a logger from a run's folder and configuration, for `loggers: [NAME]` in a recipe.

    Example:
        @register_logger("mlflow")
        def mlflow(run, config):
            return MLFlowLogger(run_name=run.name)  # of lightning.pytorch.loggers
    """

    def register(make: Maker) -> Maker:
        _REGISTERED[name] = make
        return make

    return register


def check_loggers(names: Iterable[str]) -> None:
    """Raise `InputError` if no plugin has registered one of the loggers `names`."""
    for name in names:
        if name not in _REGISTERED:
            raise unknown_name("logger", name, _REGISTERED)


def logger_makers(
    run: Path, done: int, wandb: Wandb | None, names: Iterable[str], config: Mapping[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Return the functions that make the loggers of a run, which goes on after step `done`, by name."""
    makers: dict[str, Callable[[], Any]] = {"TensorBoard": partial(TensorBoardFile, run, done)}
    if wandb is not None:
        makers["Weights & Biases"] = partial(_wandb_logger, run, wandb, done, config)
    return makers | {name: partial(_REGISTERED[name], run, config) for name in names}


class TensorBoardFile:
    """Write numbers for TensorBoard. Lightning's logger writes in a thread, whose error on a full disk is a traceback
    that nothing can catch."""

    def __init__(self, run: Path, done: int) -> None:
        require_group("train", "tensorboard")
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = run / TENSORBOARD_FOLDER
        folder.mkdir(exist_ok=True)
        file = (folder / f"events.out.tfevents.{time.time_ns()}").open("wb", buffering=0)
        self._writer, self._event = RecordWriter(file), Event
        self._write(file_version="brain.Event:2")
        # TensorBoard drops what an earlier start wrote about later steps
        self._write(step=done + 1, session_log=SessionLog(status=SessionLog.START))

    def log_metrics(self, numbers: Mapping[str, float], step: int) -> None:
        """Write the numbers of a step."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._write(step=step, summary=Summary(value=values))

    def finalize(self, status: str) -> None:
        """Close the file."""
        self._writer.close()

    def _write(self, **fields: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **fields).SerializeToString())


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
        project=settings.project,
        entity=settings.entity,
        group=settings.group,
        tags=settings.tags,
        resume="allow",
        settings=wandb.Settings(console="off", silent=True, save_code=False, x_disable_meta=True),
    )
    logger.log_hyperparams(dict(config))
    return logger
