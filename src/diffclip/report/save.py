"""Run folders condensed to what is worth committing: small, exact where it counts, readable as runs again."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from diffclip.errors import InputError
from diffclip.evaluation.focus_names import is_detail
from diffclip.evaluation.outcomes import ItemOutcomes, key_of, outcomes_file, read_outcomes, write_outcomes
from diffclip.evaluation.records import Record, to_lines
from diffclip.files import write_text
from diffclip.report.focus_metrics import is_shown, is_tested
from diffclip.report.runs import METRICS, RECIPE, RESULTS, VALIDATION, Run, read_run
from diffclip.training.about import without_credentials

RECORDS = "records.jsonl"
MAX_BYTES = 20_000
"""Of a run's telemetry; every k-th step is kept, k as small as this allows."""

# say when a run was made, not what came of it
_OF_A_MOMENT = ("time", "seconds_left")


def save_results(
    run_folders: Sequence[str | Path],
    destination: str | Path,
    records: Sequence[Record] = (),
    outcomes: Mapping[str, ItemOutcomes] | None = None,
) -> Path:
    """Condense runs into the folder `destination`: `records.jsonl`, and for each run a folder of its name.

    A run's folder holds its recipe, thinned telemetry (numbers of 5 significant digits; first and last step
    kept) and its validations; `read_run` reads it. The records of the runs and `records` come whole, but for those
    of layers and heads that no report shows, with `weights` shortened to begin at the run's folder. Beside them lies
    `records.outcomes.npz` with the outcomes of items that the runs' own files and `outcomes` (by `key_of` the records)
    hold, as far as models are compared in them. What `destination` holds of the same names is replaced.

    Raises:
        InputError: nothing to save, a run that cannot be read, two of one name, or no place to write.
    """
    runs = {run.name: run for run in map(read_run, run_folders)}
    destination = Path(destination)
    if not runs and not records:
        raise InputError("nothing to save: give at least one run folder or one file of records")
    names = [Path(folder).name for folder in run_folders]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InputError(f"two runs are called {twice!r}: rename one, as they become folders side by side")
    for name, run in runs.items():
        _save_course(run, destination / name, MAX_BYTES)
    everything = [record for run in runs.values() for record in run.records] + list(records)
    everything = [record for record in everything if is_shown(record.metric)]
    known = dict(outcomes or {})
    for run in runs.values():
        known |= read_outcomes(outcomes_file(run.folder / RESULTS))
    kept = {
        key_of(_shortened(record, runs)): known[key_of(record)]
        for record in everything
        if key_of(record) in known and is_tested(record.metric)
    }
    # before the records: of a save cut short, outcomes without a record are not asked for
    file = outcomes_file(destination / RECORDS)
    if kept:
        write_outcomes(file, kept)
    else:
        file.unlink(missing_ok=True)
    write_text(destination / RECORDS, to_lines(_shortened(record, runs) for record in everything))
    return destination


def save_run(run_folder: str | Path, destination: str | Path, max_bytes: int = MAX_BYTES) -> None:
    """Condense one run into the folder `destination`: as `save_results` does, but with the run's own records, if it
    has some, in its `results.jsonl`, without those of layers and heads, and without the outcomes of items.

    Args:
        run_folder, destination: folders; the records' `weights` begin at the name of the first.
        max_bytes: of telemetry.

    Raises:
        InputError: a run that cannot be read, or no place to write.
    """
    run = read_run(run_folder)
    destination = Path(destination)
    _save_course(run, destination, max_bytes)
    if run.records:
        kept = [record for record in run.records if not is_detail(record.metric)]
        write_text(destination / RESULTS, to_lines(_shortened(record, {run.name: run}) for record in kept))


def _save_course(run: Run, folder: Path, max_bytes: int) -> None:
    """The recipe, the telemetry and the validations of `run`."""
    write_text(folder / RECIPE, yaml.safe_dump(_portable(run.recipe), sort_keys=False, allow_unicode=True))
    write_text(folder / METRICS, _thinned(run, max_bytes))
    if run.validation:
        write_text(folder / VALIDATION, "".join(map(_line, _validations(run))))


def _shortened(record: Record, runs: Mapping[str, Run]) -> Record:
    """The record with `weights` that mean something elsewhere, and the seed of its run if it names none."""
    parts = Path(record.weights).parts
    # a run's name may be that of a folder around it, too
    name = next((part for part in reversed(parts) if part in runs), None)
    if name is None:
        return record.model_copy(update={"weights": _relative(record.weights)})
    seed = runs[name].seed if record.seed is None else record.seed
    weights = "/".join(parts[len(parts) - 1 - parts[::-1].index(name) :])
    return record.model_copy(update={"weights": weights, "seed": seed})


def _relative(path: str) -> str:
    """An absolute path from the working folder: from the root it is one machine's."""
    return os.path.relpath(path) if os.path.isabs(path) else path


def _portable(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe without absolute paths to its data and weights, and without credentials."""

    def relative(value: Any) -> Any:
        if isinstance(value, list):
            return [relative(entry) for entry in value]
        if isinstance(value, dict):
            return {key: relative(entry) for key, entry in value.items()}
        return _relative(value) if isinstance(value, str) else value

    hidden: dict[str, Any] = without_credentials(recipe)
    return {key: relative(value) if key in ("data", "weights") else value for key, value in hidden.items()}


def _thinned(run: Run, max_bytes: int) -> str:
    lines = [_line(row) for row in _rows(run)]
    sizes = np.array([len(line.encode()) for line in lines])
    every = 1
    while every < len(lines):
        ends_apart = (len(lines) - 1) % every != 0
        if sizes[::every].sum() + ends_apart * sizes[-1] <= max_bytes:
            break
        every += 1
    return "".join(line for index, line in enumerate(lines) if index % every == 0 or index == len(lines) - 1)


def _rows(run: Run) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for index in range(len(run.steps["step"])):
        row: dict[str, Any] = {
            name: values[index] for name, values in run.steps.items() if name not in _OF_A_MOMENT
        }
        row["lambda"] = {tower: list(values[index]) for tower, values in run.lambdas.items()}
        rows.append(row)
    return rows


def _validations(run: Run) -> list[dict[str, Any]]:
    return [
        {**row, "map_correlation": correlation} if correlation else row
        for row, correlation in zip(run.validation, run.map_correlations, strict=True)
    ]


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps({key: _rounded(value) for key, value in row.items()}) + "\n"


def _rounded(value: Any) -> Any:
    """Whole numbers as they are, others to 5 significant digits, what is not finite as null."""
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else float(f"{number:.5g}")
