"""Results as flat records, one JSON object a number, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from diffclip.config import explain
from diffclip.errors import InputError
from diffclip.files import write_text


class Record(BaseModel):
    """One number. `value`, `low` and `high` (95 % interval) are fractions in [0, 1] for accuracies and
    recalls.

    `weights` says where the model's values came from, `count` over how many items the metric averages, `seed`
    with which seed the model was trained (None: unknown), `protocol` how the number was measured.
    """

    model_config = ConfigDict(extra="forbid")

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


def to_lines(records: Iterable[Record]) -> str:
    """JSON lines, the fields in the order of `Record`."""
    return "".join(
        json.dumps(record.model_dump(), ensure_ascii=False, allow_nan=False) + "\n" for record in records
    )


def write_records(path: str | Path, records: Iterable[Record]) -> None:
    """Write JSON lines to `path`, whole or not at all.

    Raises:
        InputError: no space left, no permission, or a folder is in the way.
    """
    write_text(path, to_lines(records))


def read_records(path: str | Path) -> list[Record]:
    """The records of a JSON-lines file; empty lines are skipped.

    Raises:
        InputError: the file cannot be read, or a line is not a record (names file, line and field).
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(f"cannot read records from {path}: {reason}") from error
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(Record.model_validate_json(line))
        except ValidationError as error:
            raise InputError(f"{path}, line {number} is not a record: {explain(error)}") from error
    return records
