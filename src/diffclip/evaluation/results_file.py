"""A file of records that grows task by task, with a file beside it to compare by item and to resume from.

Beside `results.jsonl`, `results.outcomes.npz` holds the outcome of each item (for paired comparisons of two trained
models), and a stamp of what each finished task was measured on. Files are written completely or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclip.errors import InputError
from diffclip.evaluation.averages import DERIVED, with_averages
from diffclip.evaluation.records import MEASURE, Record, read_records, write_records
from diffclip.evaluation.scores import Score
from diffclip.files import hold_lock, write_atomically

_MEASUREMENT = ("model", "weights", "seed", "task", "dataset", "split", "templates")
_TASK = (*_MEASUREMENT, "draw")


class UnwritableResultsError(InputError):
    """The file of results cannot be written; its earlier results are as they were."""


class Outcomes(NamedTuple):
    """The outcome of each item [n], and the cluster [n] it belongs to (None: items are independent)."""

    hits: NDArray[np.float64]
    clusters: NDArray[np.int64] | None


def outcome_key(record: Record) -> str:
    """Return the name under which the outcomes of a record are kept."""
    return _key(record, "model", "weights", "seed", "draw", *MEASURE)


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
        self.path = path
        self._records: list[Record] = []
        self.outcomes: dict[str, Outcomes] = {}
        self._stamps: dict[str, str] = {}
        self.replaced = 0
        self._read()

    def _read(self) -> None:
        if self.path is not None and self.path.is_file():
            self._records = [record for record in read_records(self.path) if record.task not in DERIVED]
            # without stamps, all tasks are measured again
            self.outcomes, self._stamps = _read_side_file(self.path)

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
            names = {outcome_key(record) for record in kept}
            self._records = kept + records
            self.outcomes = {name: own for name, own in self.outcomes.items() if name in names}
            for record, score in zip(records, scores, strict=True):
                if score.hits is not None:
                    self.outcomes[outcome_key(record)] = Outcomes(score.hits, score.clusters)
            self._stamps = {task: own for task, own in self._stamps.items() if task not in outdated}
            self.replaced += bool(outdated)
            if path is not None:
                try:
                    if outdated:  # if killed before the end, an old stamp must not stand for the new records
                        self._write_side_file(path)
                    write_records(path, self.records)
                    self._stamps[key] = stamp
                    self._write_side_file(path)
                except (OSError, InputError) as error:
                    raise UnwritableResultsError(
                        f"{error}; earlier results are kept: run the command again when there is space"
                    ) from error
        self._stamps[key] = stamp
        return records

    def _write_side_file(self, path: Path) -> None:
        index = {"outcomes": list(self.outcomes), "stamps": self._stamps}
        arrays: dict[str, Any] = {"index": np.frombuffer(json.dumps(index).encode(), np.uint8)}
        for i, outcomes in enumerate(self.outcomes.values()):
            arrays[f"hits{i}"] = outcomes.hits
            if outcomes.clusters is not None:
                arrays[f"clusters{i}"] = outcomes.clusters
        with write_atomically(_side_file(path)) as temporary, temporary.open("wb") as handle:
            np.savez_compressed(handle, **arrays)


def _read_side_file(records: Path) -> tuple[dict[str, Outcomes], dict[str, str]]:
    """Read outcomes and stamps; none if the file is missing or damaged."""
    try:
        with np.load(_side_file(records), allow_pickle=False) as data:
            index = json.loads(data["index"].tobytes())
            arrays = ((data[f"hits{i}"], data.get(f"clusters{i}")) for i in range(len(index["outcomes"])))
            outcomes = {key: Outcomes(*own) for key, own in zip(index["outcomes"], arrays, strict=True)}
            return outcomes, index["stamps"]
    # zipfile, NumPy and JSON raise almost anything for damaged bytes, and the records are valid without this file
    except Exception:
        return {}, {}


def _side_file(records: Path) -> Path:
    return records.with_name(f"{records.name.removesuffix('.jsonl')}.outcomes.npz")


def _key(record: Record, *names: str) -> str:
    return json.dumps([getattr(record, name) for name in names])


def same_items(first: Outcomes, second: Outcomes) -> bool:
    """Tell whether outcomes are of the same items, so that they can be paired."""
    if first.clusters is None or second.clusters is None:
        return first.clusters is second.clusters and len(first.hits) == len(second.hits)
    return np.array_equal(first.clusters, second.clusters)
