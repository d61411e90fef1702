"""The folder of a study: run folders condensed, in groups; what is finished there is not done again.

FOLDER/study.yaml                 the study as resolved
FOLDER/sweep/ARM-lrLR-wdWD-sSEED  recipe.yaml, metrics.jsonl, validation.jsonl, cost.json
FOLDER/models/ARM-sSEED           the same, and results.jsonl
FOLDER/ablations/ARM-sSEED        the same, and results.jsonl
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from diffclip.errors import InputError
from diffclip.files import disk_errors, write_text
from diffclip.study.plan import GROUPS, Planned
from diffclip.study.recipe import Study, to_yaml
from diffclip.training.run_folder import check_resumable

STUDY_FILE, COST_FILE = "study.yaml", "cost.json"


def claim_study(study: Study, folder: Path) -> None:
    """Make `folder` this study's, or see that it is; remains of runs that a kill cut off go.

    Raises:
        InputError: as `check_study_folder`, or it cannot be written.
    """
    check_study_folder(study, folder)
    write_text(folder / STUDY_FILE, to_yaml(study))
    for group in GROUPS:
        for half in (folder / group).glob(".*.tmp"):
            with disk_errors(half):
                shutil.rmtree(half)


def check_study_folder(study: Study, folder: Path) -> None:
    """See, without writing anything, that `folder` is this study's, or nobody's.

    Raises:
        InputError: it holds another study; the first key that differs is named.
    """
    file = folder / STUDY_FILE
    with disk_errors(file):
        if not file.is_file():
            return
        try:
            before = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, ValueError):
            before = None
    if not isinstance(before, dict):
        raise InputError(f"{file} cannot be read: remove it, runs that fit the study stay finished")
    now = yaml.safe_load(to_yaml(study))
    different = _first_difference(before, now)
    if different is not None:
        key, old, new = different
        raise InputError(
            f"{folder} holds a study with {key}={_told(old)}, not {_told(new)}: choose another --output, or remove "
            f"{file} to go on there, where runs that fit stay finished"
        )


def _first_difference(before: Any, now: Any, key: str = "") -> tuple[str, Any, Any] | None:
    """The first key, with dots, that two studies do not have in common, and both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**now, **before}:
            inner = f"{key}.{name}" if key else str(name)
            found = _first_difference(before.get(name), now.get(name), inner)
            if found is not None:
                return found
        return None
    return None if before == now else (key, before, now)


def _told(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_cost(run: Path) -> dict[str, Any] | None:
    """What a condensed run cost, see `measure.cost_of`; None where the folder has none or holds something else."""
    try:
        cost = json.loads((run / COST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return cost if isinstance(cost, dict) else None


def is_finished(study: Study, planned: Planned, folder: Path) -> bool:
    """Whether the run lies in the study's `folder`, trained as planned and put through the planned suite."""
    run = folder / str(planned)
    cost = read_cost(run)
    if cost is None or cost.get("suite") != planned.suite:
        return False
    try:
        check_resumable(study.training(planned.change), run)
    except InputError:
        return False
    return True
