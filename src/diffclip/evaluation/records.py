"""Typed result records: one number each, as one flat JSON object per line; and the pandas table of them.

`protocol` is text for people. Programs read the other fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from diffclip.config import explain
from diffclip.errors import InputError, require_group
from diffclip.files import read_text, write_text

if TYPE_CHECKING:
    import pandas as pd

RESULTS_FILE = "results.jsonl"
Line = TypeVar("Line", bound=BaseModel)


class Record(BaseModel):
    """One number with every fact about it.

    Attributes:
        model: the arm of a study or the run's name without its seed, else the architecture's name.
        weights: where the weights came from.
        value: the number; a fraction in [0, 1] if the metric is a share. None if it could not be computed.
        count: the number of items that the metric averages.
        low: lower end of the 95 % interval over items; None without one.
        high: upper end of the 95 % interval over items.
        seed: the training seed; None if unknown.
        fold: in cross-validation, the part of the data that the model was not trained on, counted from 0.
        protocol: how the number was measured, for people.
        chance: the value of a random answer or order or, in `focus`, of a uniform map.
        draw: the seed of what the task draws (episodes, held-out images, noise).
        classes: the number of classes to choose from.
        templates: the number of prompt templates of a zero-shot classifier.
        of: the sets that an average is over.
        corruption: the corruption of the images, with `severity` 1 to 5.
        epsilon: the largest change of a pixel by an attack or by noise, in 255ths.
        layer: the attention layer, with its `head`; both are counted from 1.
        map: the map or order that `focus`, `faithfulness` or `mechanics` measured, or the tower ("vision", "text") of a
            `training` record.
        init: the init of the model ("matched" or "published").
        data: the training set.
        steps: the number of training steps.
        seconds: the time that the measurement took; in a `cost` record, the time that the training took.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    weights: str
    task: str
    dataset: str
    split: str
    metric: str
    value: FiniteFloat | None
    count: int = Field(ge=0)
    low: FiniteFloat | None
    high: FiniteFloat | None
    seed: int | None
    protocol: str
    fold: int | None = None
    chance: FiniteFloat | None = None
    draw: int | None = None
    classes: int | None = None
    templates: int | None = None
    of: tuple[str, ...] | None = None
    corruption: str | None = None
    severity: int | None = None
    epsilon: FiniteFloat | None = None
    layer: int | None = None
    head: int | None = None
    map: str | None = None
    init: str | None = None
    data: str | None = None
    steps: int | None = None
    seconds: FiniteFloat | None = None


MEASURE = (
    *("task", "dataset", "split", "metric", "classes", "templates", "of"),
    *("corruption", "severity", "epsilon", "layer", "head", "map"),
)
"""The fields that identify a measure: records that agree in all of them are comparable between models."""


def to_lines(records: Iterable[Record]) -> str:
    """Format as JSON lines in the order of the fields. Optional fields without value are left out, except `chance`."""
    always = {name for name, field in Record.model_fields.items() if field.is_required()} | {"chance"}
    rows = (
        {name: value for name, value in record.model_dump().items() if value is not None or name in always}
        for record in records
    )
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def write_records(path: str | Path, records: Iterable[Record]) -> None:
    """Write JSON lines to `path`, completely or not at all, as `write_text` does."""
    write_text(path, to_lines(records))


def read_records(path: str | Path) -> list[Record]:
    """Read the records of a JSON-lines file; empty lines are skipped.

    Raises:
        InputError: the file cannot be read, or a line is not a record (with file, line and field).
    """
    return parse_lines(read_text(Path(path)).split("\n"), Record, path, "record")


def parse_lines(lines: Iterable[str], kind: type[Line], path: str | Path, noun: str) -> list[Line]:
    """Parse JSON lines and skip empty ones; raise `InputError` with line and field if a line is not a `noun`."""
    parsed = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                parsed.append(kind.model_validate_json(line))
            except ValidationError as error:
                raise InputError(f"{path}, line {number} is not a {noun}: {explain(error)}") from error
    return parsed


def record_files(paths: Iterable[str | PathLike[str]]) -> list[Path]:
    """List the record files: each path that is a file, and every `results.jsonl` in or below a path that is a folder.

    Raises:
        InputError: a path does not exist, or a folder holds no results.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        matches = sorted(path.rglob(RESULTS_FILE)) if path.is_dir() else [path]
        if not matches:
            raise InputError(
                f"{path} holds no {RESULTS_FILE}: evaluate a model first, see `diffclip evaluate`"
            )
        files += matches
    return list(dict.fromkeys(files))


def load_records(paths: str | PathLike[str] | Sequence[str | PathLike[str]]) -> pd.DataFrame:
    """Load result records as a table, one row per record and one column per field.

    Args:
        paths: record files (JSON lines) or folders; every `results.jsonl` in or below a folder is loaded.

    Raises:
        InputError: as `read_records` and `record_files`; pandas is not installed.
    """
    require_group("report", "pandas")
    sources = [paths] if isinstance(paths, (str, PathLike)) else paths
    return records_table(record for path in record_files(sources) for record in read_records(path))


def records_table(records: Iterable[Record]) -> pd.DataFrame:
    """Make the table of `load_records` from records."""
    import pandas as pd

    rows = [record.model_dump() for record in records]
    frame = pd.DataFrame(rows, columns=list(Record.model_fields))
    integers = ("count", "seed", "fold", "draw", "classes", "templates", "severity", "layer", "head", "steps")
    reals = ("value", "low", "high", "chance", "epsilon", "seconds")
    return frame.astype(dict.fromkeys(integers, "Int64") | dict.fromkeys(reals, "float64"))
