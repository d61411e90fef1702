"""What the sweep says: the best score of each run on the validation split, and the settings of the best run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from diffclip.errors import InputError
from diffclip.study.folder import diverged_at, is_finished
from diffclip.study.plan import Planned, Settings, grid_runs, sweep_runs
from diffclip.study.recipe import Study
from diffclip.training.run_folder import VALIDATION_FILE

DIVERGED = -math.inf
"""The score of a run that diverged: it is never chosen."""


@dataclass(frozen=True)
class Trial:
    """One run of the sweep: `score` is its best one on the validation split, −inf for a run that diverged, None for one
    that is not finished."""

    arm: str
    settings: Settings
    score: float | None


def trials(study: Study, folder: Path) -> list[Trial]:
    """Every run of the sweep, as far as it is finished in the study's `folder`."""
    found = []
    for planned in sweep_runs(study):
        settings = Settings(planned.change["lr"], planned.change["weight_decay"])
        score = score_of(folder / str(planned)) if is_finished(study, planned, folder) else None
        found.append(Trial(planned.arm, settings, score))
    return found


def choose(study: Study, folder: Path) -> dict[str, Settings]:
    """The settings of the best run of each arm that is swept; of equal scores the first. Empty without a sweep.

    Raises:
        InputError: a run of the sweep is not finished, or all of an arm diverged.
    """
    best: dict[str, Trial] = {}
    for trial in trials(study, folder):
        if trial.score is None:
            raise InputError(
                f"{folder}: the sweep is not finished ({trial.arm}, {trial.settings}): run it first"
            )
        known = best.get(trial.arm)
        if known is None or known.score is None or trial.score > known.score:
            best[trial.arm] = trial
    for arm, trial in best.items():
        if trial.score == DIVERGED:
            raise InputError(f"{folder}: every run of {arm} in the sweep diverged: give sweep.lr lower rates")
    return {arm: trial.settings for arm, trial in best.items()}


def runs_so_far(study: Study, folder: Path) -> list[Planned]:
    """Every run in order, with what the sweep chose if it is finished in the study's `folder`."""
    try:
        chosen = choose(study, folder)
    except InputError:
        chosen = {}
    return [*sweep_runs(study), *grid_runs(study, chosen)]


def score_of(run: Path) -> float:
    """The best score of a condensed run, −inf if it diverged.

    Raises:
        InputError: as `best_score`.
    """
    return best_score(run) if diverged_at(run) is None else DIVERGED


def best_score(run: Path) -> float:
    """The highest score that a run had on its validation split, that of the checkpoint it keeps as the best.

    Raises:
        InputError: the run was never validated.
    """
    rows = map(json.loads, (run / VALIDATION_FILE).read_text(encoding="utf-8").splitlines())
    scores = [row["score"] for row in rows if "score" in row]
    if not scores:
        raise InputError(f"{run} was never validated: give the study's data a val split")
    return float(max(scores))
