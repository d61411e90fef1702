"""The site of a study's runs: folders, device and workers, what is missing there, and what can be measured."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from diffclip.data.published_sets import PUBLISHED
from diffclip.errors import InputError, require_group
from diffclip.evaluation.records import TABLE_FILE
from diffclip.evaluation.suite import SUITES, Entry, missing_of
from diffclip.files import check_writable, cores
from diffclip.names import Group
from diffclip.study.executors import visible_gpus
from diffclip.study.folds import fold_split
from diffclip.study.grid import Planned
from diffclip.study.job import Job
from diffclip.study.spec import Study
from diffclip.training.plan import measure_steps
from diffclip.training.recipe import Recipe

SCENES = "scenes"
"""The folder below RUNS for the scenes that a study draws."""
_MAX_PER_GPU = 14  # maximum of runs that share a GPU: a small model leaves most of it idle
# bytes beside the tensors of a process: an assumption, 0.7 to 1.5 GiB in practice
_CUDA_CONTEXT = 5 * 2**28


@dataclass(frozen=True)
class Site:
    """The folders of the published sets (`data`), of the runs and of the results (`output`). Up to `workers` runs share
    the `device` ("cpu" or "cuda"), with `threads` each. `keep` keeps the checkpoints of finished runs. On a `cluster`
    each run is a job on some node."""

    data: Path
    runs: Path
    output: Path
    device: str
    workers: int
    threads: int
    keep: bool = False
    cluster: bool = False

    def sets(self, study: Study) -> Path:
        """Return the folder of the sets that the study is measured with."""
        return self.runs / SCENES if study.scenes else self.data

    def folds(self, study: Study) -> Path:
        """Return the folder of the data in folds, a set with a split for each fold."""
        return self.runs / f"folds-{study.folds}" / study.data

    def with_data(self, study: Study, recipe: Recipe) -> Recipe:
        """Return the recipe of a run with the data of this site."""
        folder = self.sets(study) / study.data
        data: dict[str, Any] = {split: str(folder / split) for split in ("train", "val")}
        if study.folds is not None:
            data = {"train": [str(self.folds(study).parent / str(fold)) for fold in recipe.data.train]}
        return recipe.model_copy(update={"data": recipe.data.model_copy(update=data)})

    def entries(self, study: Study, planned: Planned) -> list[Entry]:
        """Return the entries that a trained run is evaluated with: those of its suite whose sets are available. With
        folds, the data of the study is measured on the fold that the run was not trained on."""
        suite = SUITES[planned.suite] if planned.suite else ()
        entries = [entry for entry in suite if not unavailable_sets(study, self, [entry])]
        if planned.fold is None:
            return entries
        held_out: dict[str, Any] = {"dataset": str(self.folds(study)), "splits": (fold_split(planned.fold),)}
        return [replace(entry, **held_out) if entry.dataset == study.data else entry for entry in entries]

    def job(self, study: Study, planned: Planned) -> Job:
        """Return the job of a run."""
        return Job(
            run=self.runs / planned.name,
            recipe=self.with_data(study, planned.recipe),
            entries=self.entries(study, planned),
            sets=self.sets(study),
            device=self.device,
            threads=self.threads,
            digest=planned.digest,
        )


def usual_workers(device: str, recipes: Iterable[Recipe]) -> int:
    """Return how many runs of `recipes` suit a device: one on a CPU; on GPUs, what their memory and the cores allow."""
    if device != "cuda":
        return 1
    memory, gpu = 0.9 * torch.cuda.get_device_properties(0).total_memory, torch.device(device)
    needed = max(measure_steps(recipe, gpu, recipe.batch_size)[1] or 0 for recipe in recipes)
    torch.cuda.empty_cache()
    per_gpu = max(1, min(_MAX_PER_GPU, int(memory // (needed + _CUDA_CONTEXT))))
    return max(1, min(cores() - 2, per_gpu * len(visible_gpus())))


def check_site(study: Study, site: Site, groups: Collection[Group]) -> None:
    """Check that the runs of `groups` can be done, without writing or drawing anything. `InputError` names a missing
    package, all missing data, or a folder that cannot be used."""
    require_group("train", "lightning")
    check_writable(site.runs / ".lock")
    check_writable(site.output / TABLE_FILE)
    entries = entries_of(study, groups)
    if study.scenes is not None:
        foreign = dict.fromkeys(entry.dataset for entry in entries if entry.dataset in PUBLISHED)
        if foreign:
            raise InputError(
                f"the suite measures {', '.join(foreign)}, and the study draws scenes alone: take the suite clutter or "
                "scenes"
            )
        return
    if not site.data.is_dir():
        raise InputError(
            f"folder {site.data} does not exist: name the one that holds the sets with --data, or make it for downloads"
        )
    if study.folds is not None:
        entries = [entry for entry in entries if entry.dataset != study.data]
    needed = missing_of(entries, site.data).items()
    missing = [f"{name}, {advice}" for name, advice in needed if name in PUBLISHED]
    for split in ("train", "val") if study.folds is None else ("train",):
        if not (folder := site.data / study.data / split).exists():
            missing.append(f"{folder}, the {split} split of the study's data")
    if missing:
        raise InputError(f"missing in {site.data}: {'; '.join(missing)}")


def unavailable_sets(study: Study, site: Site, entries: Iterable[Entry]) -> list[str]:
    """List the sets of `entries` that the evaluation leaves out: they are not in `data`, and no command downloads
    them."""
    missing = {} if study.scenes else missing_of(entries, site.data)
    return [name for name in missing if name not in PUBLISHED]


def entries_of(study: Study, groups: Collection[Group]) -> list[Entry]:
    """List the entries of the suites of `groups`."""
    names = dict.fromkeys(grid.suite for group, grid in study.grids.items() if group in groups)
    return [entry for name in names for entry in SUITES[name]]
