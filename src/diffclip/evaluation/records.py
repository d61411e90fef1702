"""Typed result records, one number each; their files, and the pandas table of them.

A file has one flat JSON object per line (`results.jsonl`, which an evaluation writes) or one CSV row per record
(`results.csv`, which a study keeps). Beside a CSV file, `protocols.yaml` has the fields that many records share, by the
key in the column `protocol`. The field `protocol` itself is text for people; programs read the other fields.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from diffclip.errors import InputError, explain, require_group
from diffclip.files import read_text, write_text

if TYPE_CHECKING:
    import pandas as pd

RESULTS_FILE, TABLE_FILE, PROTOCOLS_FILE = "results.jsonl", "results.csv", "protocols.yaml"
_IN_TABLE = (
    *("study", "model", "seed", "fold", "draw", "task", "dataset", "metric", "map", "epsilon", "value"),
    *("low", "high", "steps"),
)
"""The columns of a CSV file, beside the key of the protocol. Columns without any value are left out."""
Parsed = TypeVar("Parsed", bound=BaseModel)


class Record(BaseModel):
    """One number with every fact about it.

    Attributes:
        study: the study of the record, in a file of several studies.
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
        digest: the first 16 hexadecimal digits of the hash of the weights (`diffclip.weights.weights_digest`).
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
    study: str | None = None
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
    digest: str | None = None
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


def write_table(folder: Path, records: Iterable[Record]) -> None:
    """Write `results.csv` and `protocols.yaml` into a folder, with numbers of six significant digits.

    Records of single layers and heads are left out, as are the fields `weights`, `digest` and `seconds`: they would be
    most of the file.
    """
    rows, keys, protocols = [], dict[str, str](), dict[str, Any]()
    for record in records:
        if record.layer is not None or record.head is not None:
            continue
        fields = record.model_dump(mode="json", exclude={"weights", "digest", "seconds"}, exclude_none=True)
        shared = {name: value for name, value in fields.items() if name not in _IN_TABLE}
        content = json.dumps(shared, sort_keys=True)
        if content not in keys:
            number = sum(key.startswith(f"{record.task}-") for key in protocols) + 1
            keys[content] = f"{record.task}-{number}"
            protocols[keys[content]] = shared
        row = {name: _digits(value) for name, value in fields.items() if name in _IN_TABLE}
        rows.append(row | {"protocol": keys[content]})
    table = io.StringIO()
    used = [name for name in (*_IN_TABLE, "protocol") if any(name in row for row in rows)]
    writer = csv.DictWriter(table, used, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    # the table last: without its protocols a table cannot be read
    text = yaml.safe_dump(protocols, sort_keys=False, allow_unicode=True, width=1000)
    write_text(folder / PROTOCOLS_FILE, text)
    write_text(folder / TABLE_FILE, table.getvalue())


def as_in_table(record: Record) -> Record:
    """Return the record with the numbers that `write_table` writes, so that what is computed from it does not depend on
    whether it was in a table before."""
    numbers = {name: float(_digits(value)) for name, value in record if isinstance(value, float)}
    return record.model_copy(update=numbers)


def _digits(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.6g}"
    return value


def read_records(path: str | Path) -> list[Record]:
    """Read the records of a JSON-lines file (empty lines are skipped) or of a CSV file with its `protocols.yaml`. A
    file that cannot be read, or a line that is not a record, raises `InputError` (with file, line and field)."""
    path = Path(path)
    text = read_text(path)
    if path.suffix == ".csv":
        return _parse_table(path, text)
    return parse_lines(text.split("\n"), Record, path, "record")


def _parse_table(path: Path, text: str) -> list[Record]:
    if not text.strip():  # a study without a finished run
        return []
    missing = {"model", "task", "metric", "value", "protocol"} - set(next(csv.reader(io.StringIO(text)), ()))
    if missing:
        raise InputError(f"{path}, line 1 is not a record: it names no column {', '.join(sorted(missing))}")
    protocols = _read_protocols(path.with_name(PROTOCOLS_FILE))
    records = []
    for number, row in enumerate(csv.DictReader(io.StringIO(text, newline="")), 2):
        key = row.pop("protocol", None)
        if key not in protocols:
            raise InputError(
                f"{path}, line {number}: protocol {key!r} is not in {PROTOCOLS_FILE}: bring both files"
            )
        given = {name: value for name, value in row.items() if value not in ("", None)}
        absent: dict[str, Any] = dict.fromkeys(("value", "low", "high", "seed"))
        absent["weights"] = "-s".join(given[name] for name in ("model", "seed") if name in given)
        fields = absent | protocols[key] | given
        records.append(_validated(Record, fields, f"{path}, line {number}", "record"))
    return records


def _read_protocols(file: Path) -> dict[str, dict[str, Any]]:
    try:
        protocols = yaml.safe_load(read_text(file))
    except yaml.YAMLError:
        protocols = None
    if not isinstance(protocols, dict) or not all(isinstance(one, dict) for one in protocols.values()):
        raise InputError(
            f"{file} does not map keys to fields: bring the file that was written with {TABLE_FILE}"
        )
    return protocols


def parse_lines(lines: Iterable[str], kind: type[Parsed], path: str | Path, noun: str) -> list[Parsed]:
    """Parse JSON lines and skip empty ones; raise `InputError` with line and field if a line is not a `noun`."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    return [_validated(kind, line, f"{path}, line {number}", noun) for number, line in numbered]


def _validated(kind: type[Parsed], content: Any, source: str, noun: str) -> Parsed:
    """Validate JSON or a mapping; raise `InputError` with the source and the field if it is not a `noun`."""
    validate = kind.model_validate_json if isinstance(content, str) else kind.model_validate
    try:
        return validate(content)
    except ValidationError as error:
        raise InputError(f"{source} is not a {noun}: {explain(error)}") from error


def record_files(path: Path) -> list[Path]:
    """List every `results.jsonl` and `results.csv` in or below a folder; a path that is no folder stands for itself."""
    if not path.is_dir():
        return [path]
    return sorted(file for name in (RESULTS_FILE, TABLE_FILE) for file in path.rglob(name))


def load_records(paths: str | PathLike[str] | Sequence[str | PathLike[str]]) -> pd.DataFrame:
    """Load result records as a table, one row per record and one column per field.

    Args:
        paths: record files (JSON lines or CSV) or folders; every `results.jsonl` and `results.csv` in or below a folder
            is loaded.

    Raises:
        InputError: as `read_records`; a path does not exist or is a folder without results; pandas is not installed.
    """
    require_group("report", "pandas")
    files: dict[Path, None] = {}
    for path in map(Path, [paths] if isinstance(paths, (str, PathLike)) else paths):
        found = record_files(path)
        if not found:
            raise InputError(
                f"{path} holds no {RESULTS_FILE} or {TABLE_FILE}: evaluate a model first, see `diffclip evaluate`"
            )
        files |= dict.fromkeys(found)
    return records_table(record for file in files for record in read_records(file))


def records_table(records: Iterable[Record]) -> pd.DataFrame:
    """Make the table of `load_records` from records."""
    import pandas as pd

    rows = [record.model_dump() for record in records]
    frame = pd.DataFrame(rows, columns=list(Record.model_fields))
    integers = ("count", "seed", "fold", "draw", "classes", "templates", "severity", "layer", "head", "steps")
    reals = ("value", "low", "high", "chance", "epsilon", "seconds")
    return frame.astype(dict.fromkeys(integers, "Int64") | dict.fromkeys(reals, "float64"))
