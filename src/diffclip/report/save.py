"""Run folders condensed to `results.jsonl` and `curves.jsonl`, small enough to commit."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from diffclip.errors import InputError
from diffclip.evaluation.records import RESULTS_FILE, Record, read_records, record_files, to_lines
from diffclip.files import write_text
from diffclip.report.frame import short_names
from diffclip.report.tables import BY_LAYER
from diffclip.study.runs import CURVES_FILE, curve_of, run_folders, saved_curves

_POINTS = 50


def save_results(paths: Sequence[str | Path], destination: str | Path) -> Path:
    """Condense runs and record files into the folder `destination`, and return it.

    Records of single heads and of layers that no report shows are left out, and `weights` begin at the run's folder.

    Raises:
        InputError: there is nothing to save.
    """
    destination = Path(destination)
    sources = [Path(path) for path in paths]
    folders = [path for path in sources if path.is_dir()]
    runs = [run for folder in folders for run in run_folders(folder)]
    curves = saved_curves(folders) + [curve_of(run, _POINTS) for run in runs]
    files = [path for path in sources if path.is_file() or next(path.rglob(RESULTS_FILE), None)]
    records = [record for file in record_files(files) for record in read_records(file) if _is_shown(record)]
    if not records and not curves:
        raise InputError("nothing to save: give at least one run folder or one file of records")
    names = [name.split("/") for name in short_names({run.resolve() for run in runs}).values()]
    write_text(destination / RESULTS_FILE, to_lines(_shortened(record, names) for record in records))
    if curves:
        write_text(destination / CURVES_FILE, "".join(json.dumps(curve) + "\n" for curve in curves))
    return destination


def _is_shown(record: Record) -> bool:
    by_layer = BY_LAYER.get(record.task, ("lambda", "map_correlation"))
    return record.head is None and (record.layer is None or record.metric in by_layer)


def _shortened(record: Record, runs: Sequence[list[str]]) -> Record:
    """Begin `weights` at the run's folder, and as many before it as tell runs apart: a path from the root is one
    machine's."""
    parts, last = Path(record.weights).parts, {name[-1] for name in runs}
    at = next((place for place in reversed(range(len(parts))) if parts[place] in last), None)
    if at is not None:
        return record.model_copy(update={"weights": "/".join(parts[max(0, at + 1 - len(runs[0])) :])})
    weights = os.path.relpath(record.weights) if os.path.isabs(record.weights) else record.weights
    return record.model_copy(update={"weights": weights})
