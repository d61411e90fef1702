"""The folders, device and workers of a study, and estimates of its run times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from diffclip.data.published_sets import PUBLISHED
from diffclip.errors import DiffCLIPError, require_group
from diffclip.evaluation.suite import missing_of, suite
from diffclip.files import check_writable, cores
from diffclip.study.plan import GROUPS, Group, Line, Planned
from diffclip.study.recipe import Study
from diffclip.study.results import StudyFolder
from diffclip.study.runs import RUNS_FILE
from diffclip.training.plan import plan_run
from diffclip.training.recipe import Recipe

SCENES = "scenes"
"""The folder in RUNS of the scenes that a study draws."""

_DRAWS = 3  # of each task that draws at random
_BATCH = 256  # images of the evaluation at once
_ON_A_GPU = 14  # runs that share a GPU: small models leave most of it idle


@dataclass(frozen=True)
class Place:
    """The folders of the published sets (`data`), of the runs and of the results (`output`), and how runs are done:
    so many `workers` at a time on a `device` ("cpu" or "cuda"), with so many `threads` each.
    """

    data: Path
    runs: Path
    output: Path
    device: str
    workers: int
    threads: int
    keep: bool = False

    def train_words(self, study: Study, planned: Planned) -> list[str]:
        """Return the words of `diffclip train` for a run, which goes on with what is in its folder."""
        run = self.runs / planned.name
        words = ["train", study.recipe, *study.data_words(self._sets(study))]
        words += [*planned.words, "--run", str(run), "--devices", "1", "--accelerator", self.device]
        return [*words, "--resume"] if (run / "recipe.yaml").is_file() else words

    def _sets(self, study: Study) -> Path:
        return self.runs / SCENES if study.scenes else self.data

    def evaluate_words(self, study: Study, planned: Planned) -> list[str]:
        """Return the words of `diffclip evaluate` for a trained run; none in a sweep."""
        run = self.runs / planned.name
        if planned.suite is None:
            return []
        words = ["evaluate", str(run), "--suite", planned.suite, "--data-root", str(self._sets(study))]
        words += ["--output", str(run / "results.jsonl"), "--seeds", str(_DRAWS)]
        if left_out(study, self, [planned.suite]):
            words.append("--skip-missing")
        return [*words, "--batch-size", str(_BATCH), "--device", self.device]


def usual_workers(device: str, recipes: Iterable[Recipe]) -> int:
    """Return how many runs of any of `recipes` at a time suit a device: one on a CPU; a GPU has to hold them all."""
    if device != "cuda":
        return 1
    memory = 0.9 * torch.cuda.get_device_properties(0).total_memory
    needed = max(plan_run(recipe)["memory"]["total"] for recipe in recipes)
    return max(1, min(cores() - 2, _ON_A_GPU, int(memory // needed)))


def seconds_of_runs(lines: Mapping[str, Line], runs: Sequence[Planned], workers: int) -> float | None:
    """Estimate the time of `runs`: each takes the median of the finished ones of its group, or of the slowest group.
    None before a run is finished."""
    took: dict[str, list[float]] = {}
    for line in lines.values():
        if line["diverged"] is None and line["seconds"] is not None:
            took.setdefault(line["group"], []).append(line["seconds"] + (line["suite_seconds"] or 0.0))
    if not runs or not took:
        return None if runs else 0.0
    each = {group: median(seconds) for group, seconds in took.items()}
    return sum(each.get(run.group, max(each.values())) for run in runs) / min(workers, len(runs))


def problems_of(study: Study, place: Place, groups: Collection[Group] = GROUPS) -> list[str]:
    """List the reasons why the runs of `groups` cannot be done, a line each; nothing is written or drawn."""
    problems = []
    checks: tuple[Callable[[], object], ...] = (
        lambda: require_group("train", "lightning", "tensorboard"),
        lambda: check_writable(place.runs / ".lock"),
        lambda: check_writable(place.output / RUNS_FILE),
        lambda: StudyFolder(place.output).check(study),
    )
    for check in checks:
        try:
            check()
        except DiffCLIPError as error:
            problems.append(str(error))
    if study.scenes is None:
        splits = [place.data / study.data / split for split in ("train", "val")]
        problems += [
            f"{folder} is missing: the study is trained on it" for folder in splits if not folder.exists()
        ]
    entries = [entry for name in suites_of(study, groups) for entry in suite(name)]
    if study.scenes is None:
        missing = missing_of(entries, place.data).items()
        return problems + [
            f"missing in {place.data}: {name}, {how}" for name, how in missing if name in PUBLISHED
        ]
    foreign = {entry.dataset: None for entry in entries if entry.dataset in PUBLISHED}
    return problems + [
        f"{name} is not among the scenes that the study draws: choose another suite" for name in foreign
    ]


def left_out(study: Study, place: Place, suites: Iterable[str]) -> list[str]:
    """List the sets of `suites` without which runs are measured: they are not in `data`, and no command downloads
    them."""
    entries = [entry for name in suites for entry in suite(name)]
    missing = {} if study.scenes else missing_of(entries, place.data)
    return [name for name in missing if name not in PUBLISHED]


def suites_of(study: Study, groups: Collection[Group]) -> list[str]:
    """List the suites of `groups`."""
    return list(dict.fromkeys(grid.suite for group, grid in study.grids.items() if group in groups))
