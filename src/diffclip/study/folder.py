"""The folder of a study: run folders condensed, in groups; what is finished there is not done again.

FOLDER/study.yaml                 the study as resolved
FOLDER/sweep/ARM-lrLR-wdWD-sSEED  recipe.yaml, metrics.jsonl, validation.jsonl, cost.json
FOLDER/models/ARM-sSEED           the same, and results.jsonl
FOLDER/ablations/ARM-sSEED        the same, and results.jsonl
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffclip.errors import InputError
from diffclip.study.plan import Planned
from diffclip.study.recipe import Study
from diffclip.training.run_folder import check_resumable

STUDY_FILE, COST_FILE = "study.yaml", "cost.json"


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
