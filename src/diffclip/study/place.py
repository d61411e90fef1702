"""The folders, device and workers of a study."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from diffclip.data.published_sets import PUBLISHED
from diffclip.errors import InputError, require_group
from diffclip.evaluation.suite import Entry, missing_of, suite
from diffclip.files import check_writable, cores
from diffclip.study.plan import GROUPS, Planned
from diffclip.study.recipe import Group, Study
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
        words = ["train", study.recipe, *study.data_words(self._sets(study)), *planned.words]
        words += ["--run", str(run), "--devices", "1", "--accelerator", self.device]
        return [*words, "--resume"] if (run / "recipe.yaml").is_file() else words

    def evaluate_words(self, study: Study, planned: Planned) -> list[str]:
        """Return the words of `diffclip evaluate` for a trained run; none in a sweep."""
        if planned.suite is None:
            return []
        run = self.runs / planned.name
        words = ["evaluate", str(run), "--suite", planned.suite, "--data-root", str(self._sets(study))]
        words += ["--output", str(run / "results.jsonl"), "--seeds", str(_DRAWS)]
        if left_out(study, self, suite(planned.suite)):
            words.append("--skip-missing")
        return [*words, "--batch-size", str(_BATCH), "--device", self.device]

    def _sets(self, study: Study) -> Path:
        return self.runs / SCENES if study.scenes else self.data


def usual_workers(device: str, recipes: Iterable[Recipe]) -> int:
    """Return how many runs of any of `recipes` at a time suit a device: one on a CPU; a GPU has to hold them all."""
    if device != "cuda":
        return 1
    memory = 0.9 * torch.cuda.get_device_properties(0).total_memory
    needed = max(plan_run(recipe)["memory"]["total"] for recipe in recipes)
    return max(1, min(cores() - 2, _ON_A_GPU, int(memory // needed)))


def check_place(study: Study, place: Place, groups: Collection[Group] = GROUPS) -> None:
    """Check that the runs of `groups` can be done; nothing is written or drawn.

    Raises:
        InputError: a package or data is missing (all of it is named), or a folder cannot be used.
    """
    require_group("train", "lightning", "tensorboard")
    check_writable(place.runs / ".lock")
    check_writable(place.output / RUNS_FILE)
    StudyFolder(place.output).check(study)
    entries = entries_of(study, groups)
    if study.scenes is not None:
        foreign = dict.fromkeys(entry.dataset for entry in entries if entry.dataset in PUBLISHED)
        if foreign:
            raise InputError(
                f"{', '.join(foreign)} is not among the scenes that the study draws: choose another suite"
            )
        return
    needed = missing_of(entries, place.data).items()
    missing = [f"{name}, {how}" for name, how in needed if name in PUBLISHED]
    for folder in (place.data / study.data / split for split in ("train", "val")):
        if not folder.exists():
            missing.append(f"{folder}, which the study is trained on")
    if missing:
        raise InputError(f"missing in {place.data}: {'; '.join(missing)}")


def left_out(study: Study, place: Place, entries: Iterable[Entry]) -> list[str]:
    """List the sets of `entries` without which runs are measured: they are not in `data`, and no command downloads
    them."""
    missing = {} if study.scenes else missing_of(entries, place.data)
    return [name for name in missing if name not in PUBLISHED]


def entries_of(study: Study, groups: Collection[Group]) -> list[Entry]:
    """List the entries of the suites of `groups`."""
    names = dict.fromkeys(grid.suite for group, grid in study.grids.items() if group in groups)
    return [entry for name in names for entry in suite(name)]
