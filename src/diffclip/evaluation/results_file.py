"""A file of records that grows task by task. `results.stamps.json` beside `results.jsonl` says of each finished task
what it was measured on. Files are written completely or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from diffclip.errors import InputError
from diffclip.evaluation.averages import DERIVED, with_averages
from diffclip.evaluation.records import Record, read_records, write_records
from diffclip.evaluation.scores import Score
from diffclip.files import hold_lock, read_json, write_text

_MEASUREMENT = ("model", "weights", "seed", "task", "dataset", "split", "templates")
_TASK = (*_MEASUREMENT, "draw")


class UnwritableResultsError(InputError):
    """The file of results cannot be written; its earlier results are as they were."""


class ResultsFile:
    """Results of any models and tasks; new results replace earlier ones of the same model, task and set.

    `replaced` counts the measurements (all draws of one together) whose earlier result, with another stamp or none, was
    replaced.

    Args:
        path: the file; None keeps results in memory only.

    Raises:
        InputError: the file holds something other than records, or is a pipe or a device.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None and path.exists() and not path.is_file():
            raise InputError(
                f"{path} is not a regular file, and other files are written beside it: give a file's name"
            )
        if path is not None and path.suffix == ".csv":
            raise InputError(f"{path}: records are written as JSON lines: give a name that ends with .jsonl")
        self.path = path
        self._records: list[Record] = []
        self._stamps: dict[str, str] = {}
        self.replaced = 0
        self._read()

    def _read(self) -> None:
        if self.path is not None and self.path.is_file():
            self._records = [record for record in read_records(self.path) if record.task not in DERIVED]
            stamps = read_json(_stamps_file(self.path))  # without stamps, all tasks are measured again
            self._stamps = stamps if isinstance(stamps, dict) else {}

    @property
    def records(self) -> list[Record]:
        """All records so far; results of several sets or tasks include the averages over them."""
        several = len({(record.task, record.dataset) for record in self._records}) > 1
        return with_averages(self._records) if several else list(self._records)

    def find(self, stamp: str, draw: int | None = None) -> list[Record]:
        """Return the records of the finished task with this stamp and draw; empty if there is none."""
        tasks = {task for task, known in self._stamps.items() if known == stamp}
        finished = [record for record in self._records if _key(record, *_TASK) in tasks]
        return [record for record in finished if record.draw in (None, draw)]

    def add(self, scores: Sequence[Score], stamp: str = "", **facts: Any) -> list[Record]:
        """Add the scores of a task, write all files and return the records. Results that other processes added stay.

        Other draws with another stamp are removed, because a mean over draws must not mix two measurements.

        Args:
            stamp: identifies what the task was measured on, for `find`; all draws share it.
            facts: fields of the records that the scores do not have: the model's, and `seconds`.

        Raises:
            UnwritableResultsError: a file cannot be written.
        """
        records = [score.record(**facts) for score in scores]
        key, measurement = _key(records[0], *_TASK), _key(records[0], *_MEASUREMENT)
        path = self.path
        with nullcontext() if path is None else hold_lock(path.with_name(f".{path.name}.lock")):
            self._read()
            draws = [record for record in self._records if _key(record, *_MEASUREMENT) == measurement]
            outdated = {task for record in draws if self._stamps.get(task := _key(record, *_TASK)) != stamp}
            kept = [record for record in self._records if _key(record, *_TASK) not in {key, *outdated}]
            self._records = kept + records
            self._stamps = {task: own for task, own in self._stamps.items() if task not in outdated}
            self.replaced += bool(outdated)
            if path is not None:
                try:
                    if outdated:  # if killed before the end, an old stamp must not stand for the new records
                        self._write_stamps(path)
                    write_records(path, self.records)
                    self._stamps[key] = stamp
                    self._write_stamps(path)
                except (OSError, InputError) as error:
                    advice = "earlier results are kept: run the command again when there is space"
                    raise UnwritableResultsError(f"{error}; {advice}") from error
        self._stamps[key] = stamp
        return records

    def _write_stamps(self, path: Path) -> None:
        write_text(_stamps_file(path), json.dumps(self._stamps))


def _stamps_file(records: Path) -> Path:
    return records.with_name(f"{records.name.removesuffix('.jsonl')}.stamps.json")


def _key(record: Record, *names: str) -> str:
    return json.dumps([getattr(record, name) for name in names])
