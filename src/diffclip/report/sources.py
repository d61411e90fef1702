"""What the paths of `diffclip report` hold: run folders, files of records, and folders of either."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from diffclip.errors import InputError
from diffclip.evaluation.records import Record, read_records
from diffclip.report.runs import METRICS, VALIDATION, Run, is_run, read_run


def read_sources(paths: Sequence[str | Path]) -> tuple[list[Run], list[Record]]:
    """The runs and the further records at `paths`, each once.

    Raises:
        InputError: a path is missing, a folder holds neither a run nor records, or one cannot be read.
    """
    runs: dict[Path, Run] = {}
    files: dict[Path, list[Record]] = {}
    for path in map(Path, paths):
        if path.is_file():
            files.setdefault(path.resolve(), read_records(path))
            continue
        if not path.is_dir():
            raise InputError(
                f"{path} does not exist: give run folders, result files (.jsonl) or folders of either"
            )
        folders, records = _below(path)
        if not folders and not records:
            raise InputError(
                f"{path} holds neither a run (recipe.yaml, metrics.jsonl) nor evaluation records (.jsonl)"
            )
        for folder in folders:
            runs.setdefault(folder.resolve(), read_run(folder))
        for file in records:
            files.setdefault(file.resolve(), read_records(file))
    return list(runs.values()), [record for records in files.values() for record in records]


def _below(root: Path) -> tuple[list[Path], list[Path]]:
    """Run folders and files of records at or below `root`, sorted; a run's own files are its own business."""
    runs, files = [], []
    for folder, subfolders, names in os.walk(root):
        subfolders.sort()
        if is_run(Path(folder)):
            runs.append(Path(folder))
            subfolders.clear()
            continue
        candidates = [Path(folder, name) for name in sorted(names) if name.endswith(".jsonl")]
        files += [
            path for path in candidates if path.name not in (METRICS, VALIDATION) and _holds_records(path)
        ]
    return runs, files


def _holds_records(path: Path) -> bool:
    """Whether the first line is a record: other kinds of JSON lines may lie beside them."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        first = lines.readline()
    try:
        row = json.loads(first)
    except json.JSONDecodeError:
        return False
    return isinstance(row, dict) and {"model", "metric", "value"} <= row.keys()
