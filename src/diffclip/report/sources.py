"""What the paths of `diffclip report` hold: run folders, files of records, and folders of either."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from diffclip.errors import InputError
from diffclip.evaluation.outcomes import ItemOutcomes, outcomes_file, read_outcomes
from diffclip.evaluation.records import Record, read_records
from diffclip.report.runs import METRICS, RESULTS, VALIDATION, Run, has_begun, is_run, read_run
from diffclip.study.folder import STUDY_FILE


def read_sources(
    paths: Sequence[str | Path], say: Callable[[str], object] | None = None
) -> tuple[list[Run], list[Record]]:
    """The runs and the further records at `paths`, each once.

    Args:
        paths: run folders, files of records, and folders of either.
        say: told of runs that are left out as they have not made a step yet; None: such a run is an error.

    Raises:
        InputError: a path is missing, a folder holds neither a run nor records, or one cannot be read.
    """
    folders, files = _found(paths)
    begun = [folder for folder in folders if has_begun(folder)]
    if say is not None and (begun or files):
        for folder in folders:
            if folder not in begun:
                say(f"{folder} is left out: it has not made a step yet")
        folders = begun
    return list(map(read_run, folders)), [record for file in files for record in read_records(file)]


def read_outcomes_of(paths: Sequence[str | Path]) -> dict[str, ItemOutcomes]:
    """The outcomes of items that lie beside the records at `paths` and in the run folders there, by `key_of`.

    Raises:
        InputError: as `read_sources`, or a file of outcomes is damaged.
    """
    folders, files = _found(paths)
    found: dict[str, ItemOutcomes] = {}
    for records in [*(folder / RESULTS for folder in folders), *files]:
        found |= read_outcomes(outcomes_file(records))
    return found


def _found(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """The run folders and the files of records at `paths`, each once."""
    runs: dict[Path, Path] = {}
    files: dict[Path, Path] = {}
    for path in map(Path, paths):
        if path.is_file():
            files.setdefault(path.resolve(), path)
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
            runs.setdefault(folder.resolve(), folder)
        for file in records:
            files.setdefault(file.resolve(), file)
    return list(runs.values()), list(files.values())


def _below(root: Path) -> tuple[list[Path], list[Path]]:
    """Run folders and files of records at or below `root`, sorted; a run's own files are its own business.

    Of a study only the models are runs to compare: its sweep and its ablations are other series of the same models.
    """
    runs, files = [], []
    for folder, subfolders, names in os.walk(root):
        subfolders.sort()
        if is_run(Path(folder)):
            runs.append(Path(folder))
            subfolders.clear()
            continue
        if STUDY_FILE in names:
            subfolders[:] = [name for name in subfolders if name == "models"]
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
