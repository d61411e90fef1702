"""The folder of a study: spec.yaml, runs.jsonl, results.csv with protocols.yaml, and curves.jsonl.

One process writes it. A finished run is added to all files, each written whole, and to runs.jsonl last. So a run
without a line there is not finished, even if a killed process left lines elsewhere. The imports at the top do not
import torch, because reports read studies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diffclip.errors import InputError
from diffclip.evaluation.averages import with_averages
from diffclip.evaluation.family import Family
from diffclip.evaluation.records import (
    RESULTS_FILE,
    TABLE_FILE,
    Record,
    as_in_table,
    read_records,
    write_table,
)
from diffclip.evaluation.verdicts import SPEC_FILE
from diffclip.files import write_text
from diffclip.study.rates import with_chosen_rates
from diffclip.training.recipe_file import parse, recipe_fields
from diffclip.training.run_folder import (
    ABOUT_FILE,
    METRICS_FILE,
    VALIDATION_FILE,
    Row,
    curve,
    describe_change,
    read_lines,
    read_starts,
    write_lines,
)

if TYPE_CHECKING:
    from diffclip.study.grid import Planned
    from diffclip.study.job import JobResult
    from diffclip.study.site import Site
    from diffclip.study.spec import Study
    from diffclip.training.recipe import Recipe

RUNS_FILE, CURVES_FILE, TIMING_FILE = "runs.jsonl", "curves.jsonl", "timing.json"

_WRITTEN = "# written by diffclip study"
_POINTS = 50  # points per curve


class StudyFolder:
    """The study's folder at `path`. `runs` has the lines of runs.jsonl, facts about finished runs, by name; `study` is
    the study that has claimed the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study: Study | None = None
        self.runs: dict[str, Row] = {line["run"]: line for line in read_lines(path / RUNS_FILE)}

    def check(self, study: Study) -> None:
        """Check, without writing anything, that the folder holds this study or none. `InputError` names a key that all
        runs depend on and that has another value there."""
        if not (self.path / SPEC_FILE).is_file():
            return
        old, new = _fixed_fields(read_spec(self.path)), _fixed_fields(study)
        # a grid may come or go
        free = {key for key in new if key.endswith(".suite") and None in (old[key], new[key])}
        if change := describe_change(old, new, free):
            raise InputError(
                f"{self.path} holds a study with {change}: choose another --output and other --runs"
            )

    def claim(self, study: Study) -> None:
        """Check the folder and write spec.yaml, with every key, unless the folder has a spec that says the same."""
        self.check(study)
        self.study, file = study, self.path / SPEC_FILE
        if file.is_file() and not file.read_text("utf-8").startswith(_WRITTEN):
            if change := describe_change(read_spec(self.path).model_dump(), study.model_dump(), ()):
                raise InputError(f"{file} has {change}: write it into the file, or choose another --output")
        else:
            write_text(file, f"{_WRITTEN}\n{study.to_yaml()}")

    def add(self, line: Row, records: Iterable[Record], curve: Row) -> None:
        """Add a finished run, in place of an earlier run of that name."""
        name, arm, seed = line["run"], line["arm"], line["seed"]
        if line["group"] != "sweep":
            file = self.path / TABLE_FILE
            saved = read_records(file) if file.is_file() else []
            saved = [record for record in saved if (record.model, record.seed) != (arm, seed)]
            results = with_averages([*saved, *map(as_in_table, records)])  # recompute all with this code
            if self.study is not None:
                ended = {(done["arm"], done["seed"]) for done in [*self.runs.values(), line]}
                results = with_chosen_rates(results, self.study, ended)
            write_table(self.path, results)
            curves = [row for row in read_lines(self.path / CURVES_FILE) if row["run"] != name]
            write_lines(self.path / CURVES_FILE, [*curves, curve])
        self.runs[name] = line
        write_lines(self.path / RUNS_FILE, self.runs.values())


def saved_curves(folders: Iterable[Path]) -> list[Row]:
    """Read the lines of every `curves.jsonl` below `folders`."""
    files = [file for folder in folders for file in sorted(folder.rglob(CURVES_FILE))]
    return [row for file in files for row in read_lines(file)]


def read_spec(folder: Path) -> Family:
    """Read the spec in `folder`: a study (with `models`), or comparisons alone."""
    from diffclip.study.spec import Study  # imports torch

    file = folder / SPEC_FILE
    fields = recipe_fields(file)
    return parse(Study if "models" in fields else Family, fields, file, "spec")


def read_timing(folder: Path) -> dict[str, Any]:
    """Read the step times of a study's arms that took turns in one process; empty if there are none."""
    file = folder / TIMING_FILE
    return dict(json.loads(file.read_text("utf-8"))["arms"]) if file.is_file() else {}


def describe_run(
    run: Path, planned: Planned, study: Study, site: Site, ended: JobResult
) -> tuple[Row, list[Record], Row]:
    """Describe the finished run in the folder `run`: its line, its records and its curve. `InputError` is raised if a
    file cannot be read, or if the run was never validated."""
    steps, validations = (read_lines(run / name) for name in (METRICS_FILE, VALIDATION_FILE))
    starts = read_starts(run)
    if not starts:
        raise InputError(f"{run / ABOUT_FILE} is missing or damaged: remove {run}, and the run is made again")
    diverged = ended.diverged is not None
    scored = [row for row in validations if row.get("score") is not None]
    if not diverged and not scored and planned.recipe.data.val is not None:
        raise InputError(f"{run} was never validated: give the study's data a split val")
    best = max(scored, key=lambda row: row["score"], default={})
    samples = np.diff([0, *(row["samples"] for row in steps)])
    counts = np.diff([0, *(row["step"] for row in steps)])  # a row has the steps since the one before
    seconds = samples / [row["samples_per_second"] for row in steps] if steps else np.zeros(0)
    names = {"run": planned.name, "group": planned.group, "arm": planned.arm, "seed": planned.seed}
    line = names | {
        "lr": planned.recipe.lr,
        "weight_decay": planned.recipe.weight_decay,
        "score": None if diverged else best.get("score"),
        "diverged": ended.diverged,
        "steps": steps[-1]["step"] if steps else 0,
        "seconds": round(float(seconds.sum()), 2),
        "suite_seconds": ended.suite_seconds,
        "parameters": _count_parameters(planned.recipe),
        "step_seconds": float(np.median(seconds / counts)) if steps else None,
        "peak_memory": starts[-1].get("ended", {}).get("peak_memory"),
        "device": starts[-1]["gpus"][0]["name"] if site.device == "cuda" else starts[-1]["machine"]["cpu"],
        "threads": site.threads,
        "side_by_side": 1 if site.cluster else site.workers,
        "recipe": planned.digest,
    }
    records: list[Record] = []
    if planned.group != "sweep" and not diverged:
        records = _training_records(study, planned, line, best, steps[-1])
        for record in read_records(run / RESULTS_FILE):
            if record.layer is None:
                # measures on folds have one name in all runs
                split = "fold" if planned.fold is not None and record.dataset == study.data else record.split
                records.append(record.model_copy(update=_describe_model(planned) | {"split": split}))
    return line, records, names | curve(steps, validations, _POINTS)


def _training_records(study: Study, planned: Planned, line: Row, best: Row, last: Row) -> list[Record]:
    """Make the records of the training: validation score, λ and correlation of the maps by tower, and cost."""
    common = {"dataset": study.data, "data": study.data, "init": planned.recipe.init, "steps": line["steps"]}
    common |= {"low": None, "high": None, "split": "train", "count": 1} | _describe_model(planned)

    def record(task: str, metric: str, value: float, protocol: str, **facts: Any) -> Record:
        fields = {"task": task, "metric": metric, "value": value, "protocol": protocol}
        return Record.model_validate(common | fields | facts)

    records: list[Record] = []
    if best:
        protocol = "mean of the six recalls of retrieval, best checkpoint"
        facts = {"split": "val", "count": best.get("captions", 0)}
        records.append(record("validation", "score", best["score"], protocol, **facts))
    for metric, row, protocol in (
        ("lambda", last, "mean over layers, last step"),
        ("map_correlation", best, "mean over layers, best checkpoint"),
    ):
        for tower, values in (row.get(metric) or {}).items():
            if values:  # none for a plain tower
                facts = {"map": "vision" if tower == "visual" else tower}
                records.append(record("training", metric, float(np.mean(values)), protocol, **facts))
    protocol = f"{line['side_by_side']} at a time on {line['device']}, {line['threads']} threads each"
    costs = ("parameters", "step_seconds", "seconds", "peak_memory")
    return records + [record("cost", name, line[name], protocol) for name in costs if line[name] is not None]


def _describe_model(planned: Planned) -> dict[str, Any]:
    checkpoint = "last" if planned.recipe.data.val is None else "best"
    names = {"model": planned.arm, "seed": planned.seed, "fold": planned.fold}
    return names | {"weights": f"{planned.name}/checkpoints/{checkpoint}"}


def _count_parameters(recipe: Recipe) -> int:
    from diffclip.model import empty_model

    return sum(weights.numel() for weights in empty_model(recipe.config()).parameters())


def _fixed_fields(spec: Family) -> dict[str, Any]:
    """Return the keys that must not change in a study's folder: with other values, runs have another training recipe or
    other data, other tasks or another primary endpoint."""
    study = spec.model_dump(mode="json")
    fixed = {key: study.get(key) for key in ("recipe", "change", "data", "scenes", "folds")}
    primary = study["endpoints"]["primary"] or {}
    keys = ("arm", "against", "task", "dataset", "metric")
    fixed |= {f"endpoints.primary.{key}": primary.get(key) for key in keys}
    return fixed | {f"{name}.suite": (study.get(name) or {}).get("suite") for name in ("models", "ablations")}
