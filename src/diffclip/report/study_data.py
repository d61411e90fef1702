"""A study's folder read back: which of its planned runs are finished, and what they measured, by arm and seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from diffclip.errors import InputError
from diffclip.evaluation.outcomes import outcomes_file, read_outcomes
from diffclip.report.runs import RESULTS, Run, read_run
from diffclip.report.series import Collection, collect
from diffclip.report.study_strays import Stray, strays_in
from diffclip.study.choose import DIVERGED, Trial, choose, trials
from diffclip.study.folder import STUDY_FILE, diverged_at, is_finished, read_cost
from diffclip.study.plan import Planned, Settings, grid_runs, repeats, sweep_runs
from diffclip.study.recipe import Study, read_study
from diffclip.study.timing import Timing, read_timing


@dataclass(frozen=True)
class Trained:
    """One finished run of a grid, and what it cost (see `cost.json` in `diffclip.study.folder`)."""

    planned: Planned
    run: Run
    cost: dict[str, Any]

    @property
    def score(self) -> float | None:
        """The best score on the validation split: the mean of the six recalls there."""
        return None if self.run.best is None else self.run.best["score"]

    @property
    def last_loss(self) -> float | None:
        """Training loss, the mean over the last epoch."""
        if not {"loss", "epoch"} <= self.run.steps.keys():
            return None
        loss, epoch = self.run.steps["loss"], self.run.steps["epoch"]
        kept = loss[(epoch == epoch[-1]) & np.isfinite(loss)]
        return float(kept.mean()) if len(kept) else None


@dataclass(frozen=True)
class Diverged:
    """A run that is finished because its loss or gradient was not finite in `step`: it has no score."""

    planned: Planned
    step: int


@dataclass(frozen=True, eq=False)
class StudyData:
    """A study, its sweep, its finished runs, those that are missing or diverged, and finished ones that do not fit it.

    `repeats` are the arms that are others under another name, `timing` the times a step, measured alone. `collection`
    holds the runs of the group models alone: of the sweep and the ablations no series is made.
    """

    study: Study
    folder: Path
    trials: list[Trial]
    chosen: dict[str, Settings]
    planned: list[Planned]
    trained: list[Trained]
    missing: list[Planned]
    diverged: list[Diverged]
    strays: list[Stray]
    repeats: dict[str, str]
    timing: Timing | None
    collection: Collection = field(repr=False)

    @property
    def hopeless(self) -> list[str]:
        """The models of which every run of the sweep diverged, so that nothing can be chosen."""
        return _hopeless(self.trials)

    @cached_property
    def arms(self) -> dict[str, dict[int, Trained]]:
        """The finished runs by arm and seed, in the order of the plan."""
        found: dict[str, dict[int, Trained]] = {}
        for one in self.trained:
            found.setdefault(one.planned.arm, {})[one.planned.seed] = one
        return found

    @cached_property
    def measured(self) -> dict[str, Collection]:
        """What was measured of each arm, by itself: arms are told apart by name, whatever their models are."""
        return {arm: collect([one.run for one in own.values()], []) for arm, own in self.arms.items()}

    def scores(self, arm: str) -> dict[int, float]:
        """The best validation score of each seed of an arm."""
        own = self.arms.get(arm, {})
        return {seed: one.score for seed, one in own.items() if one.score is not None}

    def costs(self, arm: str, key: str) -> dict[int, float]:
        """A number of `cost.json` of each seed of an arm that has one."""
        own = {seed: one.cost.get(key) for seed, one in self.arms.get(arm, {}).items()}
        return {
            seed: float(value)
            for seed, value in own.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }

    def told(self, key: str, arms: Sequence[str]) -> list[str]:
        """The different things that `cost.json` says under `key` for the runs of these arms."""
        found = (one.cost.get(key) for arm in arms for one in self.arms.get(arm, {}).values())
        return list(dict.fromkeys(str(value) for value in found if value is not None))


def is_study(folder: str | Path) -> bool:
    """Whether `folder` is a study's."""
    return Path(folder, STUDY_FILE).is_file()


def read_study_data(folder: str | Path) -> StudyData:
    """Read a study's folder; runs there that are not as planned now count as missing, and are told as strays.

    Raises:
        InputError: the study or a finished run in it cannot be read.
    """
    folder = Path(folder)
    study = read_study(folder / STUDY_FILE)
    tried = trials(study, folder)
    decided = all(trial.score is not None for trial in tried) and not _hopeless(tried)
    chosen = choose(study, folder) if decided else {}
    swept, planned = sweep_runs(study), grid_runs(study, chosen)
    trained = []
    diverged = [
        Diverged(one, step)
        for one, trial in zip(swept, tried, strict=True)
        if trial.score is not None and (step := diverged_at(folder / str(one))) is not None
    ]
    missing = [one for one, trial in zip(swept, tried, strict=True) if trial.score is None]
    for one in planned:
        # before the sweep has decided, nobody knows what the runs of the grids are
        run = folder / str(one)
        if not decided or not is_finished(study, one, folder):
            missing.append(one)
        elif (step := diverged_at(run)) is not None:
            diverged.append(Diverged(one, step))
        else:
            trained.append(Trained(one, read_run(run), read_cost(run) or {}))
    everything = [*swept, *planned]
    counted = {str(one) for one in everything} - {str(one) for one in missing}
    strays = strays_in(study, folder, everything, counted, decided)
    models = [one for one in trained if one.planned.group == "models"]
    outcomes = {
        key: own
        for one in models
        for key, own in read_outcomes(outcomes_file(one.run.folder / RESULTS)).items()
    }
    collection = collect([one.run for one in models], [], outcomes)
    return StudyData(
        study=study,
        folder=folder,
        trials=tried,
        chosen=chosen,
        planned=everything,
        trained=trained,
        missing=missing,
        diverged=diverged,
        strays=strays,
        repeats=repeats(study, chosen) if decided else {},
        timing=read_timing(folder),
        collection=collection,
    )


def study_among(paths: Sequence[str | Path]) -> StudyData | None:
    """The study whose folder `paths` is, None where there is no study's folder among them.

    Raises:
        InputError: there is one beside other paths, or it cannot be read.
    """
    found = [path for path in paths if is_study(path)]
    if not found:
        return None
    if len(paths) > 1:
        raise InputError(f"{found[0]} is the folder of a study: report it by itself")
    return read_study_data(found[0])


def _hopeless(tried: Sequence[Trial]) -> list[str]:
    scores: dict[str, list[float | None]] = {}
    for trial in tried:
        scores.setdefault(trial.arm, []).append(trial.score)
    return [arm for arm, own in scores.items() if all(score == DIVERGED for score in own)]


def mean_of(values: dict[int, float]) -> float | None:
    """The mean over seeds; None without any."""
    return statistics.fmean(values.values()) if values else None
