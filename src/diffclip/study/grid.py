"""The runs of a study: their names, settings and order, and the choice of the sweep."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any

from diffclip.errors import InputError
from diffclip.files import digest_of
from diffclip.names import GROUPS, Group
from diffclip.study.folds import fold_split
from diffclip.study.spec import Study
from diffclip.training.recipe import FREE_KEYS, Recipe
from diffclip.training.run_folder import Row

Settings = Mapping[str, float]
"""The choice of a sweep for an arm: `lr` and `weight_decay`; empty for the recipe's own."""


@dataclass(frozen=True)
class Planned:
    """A run to be done. `name` is its folder below RUNS. `recipe` expects the data in the working folder. `suite` names
    the suite of the evaluation (None in a sweep). `digest` identifies the settings. `fold` is the part of the data that
    the run is not trained on, counted from 0."""

    group: Group
    arm: str
    seed: int
    name: str
    recipe: Recipe
    suite: str | None
    digest: str
    fold: int | None = None

    def is_finished(self, lines: Mapping[str, Row]) -> bool:
        """Tell whether `lines`, the finished runs of the study, include this run with the same settings."""
        line = lines.get(self.name)
        return line is not None and line["recipe"] == self.digest


def sweep_runs(study: Study) -> list[Planned]:
    """List the runs of the sweep, seed by seed."""
    sweep = study.sweep
    if sweep is None:
        return []
    return [
        _make_planned(study, "sweep", arm, seed, {"lr": lr, "weight_decay": decay})
        for seed, lr, decay, arm in product(sweep.seeds, sweep.lr, sweep.weight_decay, sweep.arms)
    ]


def grid_runs(study: Study, chosen: Mapping[str, Settings]) -> list[Planned]:
    """List the runs of the grids, seed by seed and fold by fold, so that an interrupted grid has complete seeds.
    `chosen` has the settings of each swept arm; without them an arm keeps those of the recipe.

    The folds of a seed have seeds of their own, so the spread over folds is also that of the initial values.
    """
    runs = []
    for group, grid in study.grids.items():
        for seed in study.run_seeds(grid):
            for arm in grid.arms:
                if rates := grid.rates(arm):
                    settings = [(name, {"lr": lr}) for name, lr in rates.items()]
                else:
                    settings = [(arm, dict(chosen.get(study.tuned_as(arm), {})))]
                runs += [_make_planned(study, group, arm, seed, values, name) for name, values in settings]
    return runs


def choose(study: Study, lines: Mapping[str, Row]) -> dict[str, Settings]:
    """Choose for each swept arm the settings with the best mean score over the sweep's seeds (the first if equal).

    A run that diverged rules its settings out. Without a sweep the result is empty. `InputError` is raised if a run of
    the sweep is not finished, or if all settings of an arm diverged.
    """
    chosen: dict[str, Settings] = {}
    for arm, arm_scores in _sweep_scores(study, lines).items():
        best = max(arm_scores, key=lambda settings: fmean(arm_scores[settings]))
        if fmean(arm_scores[best]) == -math.inf:
            raise InputError(f"every setting of {arm} in the sweep diverged: give sweep.lr lower rates")
        chosen[arm] = {"lr": best[0], "weight_decay": best[1]}
    return chosen


def _sweep_scores(
    study: Study, lines: Mapping[str, Row]
) -> dict[str, dict[tuple[float, float], list[float]]]:
    """Return the scores of the sweep's seeds by arm and (rate, decay); −∞ for a run that diverged."""
    scores: dict[str, dict[tuple[float, float], list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in sweep_runs(study):
        if not run.is_finished(lines):
            raise InputError(
                f"the sweep is not finished ({run.name} is missing): run it first, with --only sweep"
            )
        score = lines[run.name]["score"]
        scores[run.arm][run.recipe.lr, run.recipe.weight_decay].append(-math.inf if score is None else score)
    return scores


def sweep_doubts(
    study: Study, lines: Mapping[str, Row], chosen: Mapping[str, Settings]
) -> dict[str, list[str]]:
    """Say for each swept arm what makes the choice of a finished sweep doubtful: the edge of the grid, and a second
    best setting within noise, with the number of seeds that would tell the two apart.

    The noise is the spread over seeds, pooled over the arm's settings. Two means of n seeds are apart if their
    difference is more than twice its standard error, 2·sd·√(2/n).
    """
    doubts: dict[str, list[str]] = {}
    for arm, by_settings in _sweep_scores(study, lines).items() if chosen else ():
        rates, best = sorted({lr for lr, _ in by_settings}), (chosen[arm]["lr"], chosen[arm]["weight_decay"])
        doubts[arm] = []
        if len(rates) > 1 and best[0] in (rates[0], rates[-1]):
            side = "lower" if best[0] == rates[0] else "higher"
            doubts[arm].append(f"best at the edge of the grid: add a {side} rate to sweep.lr")
        finite = {key: values for key, values in by_settings.items() if min(values) > -math.inf}
        others = [key for key in finite if key != best]
        if not others or len(finite[best]) < 2:
            continue
        following = max(others, key=lambda key: fmean(finite[key]))
        gap = fmean(finite[best]) - fmean(finite[following])
        sd = math.sqrt(fmean(variance(values) for values in finite.values()))
        if gap <= 2 * sd * math.sqrt(2 / len(finite[best])):
            needed = f"{math.ceil(round(2 * (2 * sd / gap) ** 2, 6))} seeds" if gap else "no number of seeds"
            doubts[arm].append(
                f"within noise of the next (lr {following[0]:g}, {100 * gap:.2f} points less, seeds vary by "
                f"{100 * sd:.2f}): {needed} would tell them apart"
            )
    return doubts


def plan(
    study: Study, lines: Mapping[str, Row], groups: Collection[Group] = GROUPS
) -> tuple[list[Planned], dict[str, Settings]]:
    """List the runs of `groups` in order, and return what the sweep chose. Before the end of the sweep nothing is
    chosen, and the runs of the grids have provisional settings."""
    try:
        chosen = choose(study, lines)
    except InputError:
        chosen = {}
    return [run for run in [*sweep_runs(study), *grid_runs(study, chosen)] if run.group in groups], chosen


def seconds_of_runs(lines: Mapping[str, Row], runs: Sequence[Planned], workers: int) -> float | None:
    """Estimate the time of `runs`: each takes the median of the finished runs of its group, or, if there are none, of
    the slowest group. None before any run is finished."""
    run_seconds: dict[str, list[float]] = defaultdict(list)
    for line in lines.values():
        if line["diverged"] is None and line["seconds"] is not None:
            run_seconds[line["group"]].append(line["seconds"] + (line["suite_seconds"] or 0.0))
    if not runs or not run_seconds:
        return None if runs else 0.0
    medians = {group: median(seconds) for group, seconds in run_seconds.items()}
    return sum(medians.get(run.group, max(medians.values())) for run in runs) / min(workers, len(runs))


def settings_digest(recipe: Recipe) -> str:
    """Hash the keys that decide a run's numbers and differ from the defaults. The last two parts of a path identify the
    data, so folders may be moved."""
    fields = recipe.model_dump(mode="json", exclude_defaults=True, exclude=FREE_KEYS)
    data = {key: value for key, value in fields["data"].items() if f"data.{key}" not in FREE_KEYS}
    sources = [_shorten_paths(value) for value in (recipe.data.train, recipe.data.val)]
    return digest_of({**fields, "data": data, "where": sources})[:16]


def _shorten_paths(value: Any) -> Any:
    """Shorten paths to their last two parts."""
    if isinstance(value, str):
        return "/".join(Path(value).parts[-2:])
    if isinstance(value, list):
        return [_shorten_paths(item) for item in value]
    return value if value is None else value.model_dump(mode="json")


def _make_planned(
    study: Study, group: Group, arm: str, seed: int, settings: Settings, label: str = ""
) -> Planned:
    changes: dict[str, Any] = {**settings, "seed": seed}
    arm_changes = study.arms[arm].change  # takes precedence over the settings
    recipe = study.recipes[arm].model_copy(update={k: v for k, v in changes.items() if k not in arm_changes})
    if group == "sweep":
        name = f"sweep/{arm}-lr{settings['lr']:g}-wd{settings['weight_decay']:g}-s{seed}"
        return Planned(group, arm, seed, name, recipe, None, settings_digest(recipe))
    name, fold = f"{group}/{label}-s{seed}", None
    if study.folds is not None:
        fold = seed % study.folds
        train = [f"{study.data}/{fold_split(other)}" for other in range(study.folds) if other != fold]
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train})})
    return Planned(group, label, seed, name, recipe, study.grids[group].suite, settings_digest(recipe), fold)
