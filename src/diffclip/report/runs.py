"""A run folder read back: its recipe, telemetry, validations, results and λ.

A run may still be going, may have been killed and resumed, and may have begun with an earlier version.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from diffclip.config import ABLATIONS, VARIANTS, CLIPConfig, name_of
from diffclip.errors import InputError
from diffclip.evaluation.records import Record, read_records
from diffclip.report.telemetry_file import TOWERS, Array, is_number, read_columns, rows_of
from diffclip.training.about import read_starts
from diffclip.training.recipe import parse_recipe

RECIPE, METRICS, VALIDATION, RESULTS = "recipe.yaml", "metrics.jsonl", "validation.jsonl", "results.jsonl"
FINE_TUNED = "fine-tuned"
"""In the place of an init: the run went on from the weights of another."""


@dataclass(frozen=True)
class Run:
    """One training run. Arrays are in order of steps; `T` is the number of steps that were read."""

    folder: Path
    model: str
    variant: str
    init: str | None
    seed: int | None
    recipe: dict[str, Any]
    config: CLIPConfig | None
    """Of the model, None where this version of the package does not read the recipe."""
    steps: dict[str, Array]
    """Telemetry by name, each [T]: step, epoch, samples, loss, accuracy, lr, logit_scale, grad_norm, …"""
    lambdas: dict[str, Array]
    """λ by tower ("visual", "text"), each [T, layers]; a plain tower has no layers, [T, 0]."""
    validation: list[dict[str, float]]
    map_correlations: list[dict[str, list[float]]]
    """Of A1 with A2 at each validation, by tower, a number a layer; nothing where a validation does not tell."""
    records: list[Record]
    skipped: int
    """Lines of the run's JSON-lines files that could not be read (cut short by a kill, or being written)."""
    written: float
    """When its telemetry was written to last, unix seconds."""
    starts: list[dict[str, Any]]
    """What `about.json` tells of each start, oldest first; none for a run that has no such file."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def best(self) -> dict[str, float] | None:
        """The validation with the best score, None where there is none."""
        scored = [row for row in self.validation if math.isfinite(row.get("score", math.nan))]
        return max(scored, key=lambda row: row["score"], default=None)

    @property
    def last_lambdas(self) -> dict[str, Array]:
        """λ of each layer after the last step, by tower, each [layers]."""
        return {tower: values[-1] for tower, values in self.lambdas.items()}

    @property
    def minutes(self) -> float | None:
        """Training time without validation, from the rate of each step; None where no rate is known."""
        if not {"samples", "samples_per_second"} <= self.steps.keys():
            return None
        samples = np.diff(self.steps["samples"], prepend=0.0)
        rate = self.steps["samples_per_second"]
        known = np.isfinite(rate) & (rate > 0)
        return float(np.sum(samples[known] / rate[known]) / 60) if known.any() else None


def is_run(folder: Path) -> bool:
    """Whether `folder` looks like a run: it holds a recipe or telemetry."""
    return (folder / RECIPE).is_file() or (folder / METRICS).is_file()


def has_begun(folder: Path) -> bool:
    """Whether the run in `folder` has told of a whole step."""
    file = folder / METRICS
    return file.is_file() and any(row is not None for row in rows_of(file))


def read_run(folder: str | Path) -> Run:
    """Read a run folder, also one of a run that is still going.

    Raises:
        InputError: the folder, its recipe or its telemetry is missing, not readable or without a whole step.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no run folder at {folder}")
    recipe = _read_recipe(folder / RECIPE)
    if not (folder / METRICS).is_file():
        raise InputError(f"{folder} has no {METRICS}: has the run made its first step?")
    columns = read_columns(folder / METRICS)
    if not columns.length:
        raise InputError(f"{folder / METRICS} holds no complete step yet")
    steps = columns.numbers
    validations, cut = _read_validations(folder / VALIDATION)
    # a run resumed from an earlier step repeats a validation later; until then the old one is not this run's
    validations = [row for row in validations if row["step"] <= steps["step"][-1]]
    records = read_records(folder / RESULTS) if (folder / RESULTS).is_file() else []
    config = _config(recipe, folder / RECIPE)
    model = records[0].model if records else name_of(config) if config else str(recipe.get("model", "custom"))
    seed = recipe.get("seed")
    return Run(
        folder=folder,
        model=model,
        variant=variant_of_label(model),
        init=_init(recipe),
        seed=int(seed) if seed is not None else None,
        recipe=recipe,
        config=config,
        steps=steps,
        lambdas=columns.lambdas,
        validation=[
            {key: float(value) for key, value in row.items() if is_number(value)} for row in validations
        ],
        map_correlations=[_map_correlation(row) for row in validations],
        records=records,
        skipped=columns.skipped + cut,
        written=(folder / METRICS).stat().st_mtime,
        starts=read_starts(folder),
    )


def variant_of_label(label: str) -> str:
    """The variant or ablation in a model's label ("DiffCLIP-dynamic" of "DiffCLIP-dynamic-ViT-B-16"), else "custom"."""
    known = (*VARIANTS, *ABLATIONS)
    fitting = [variant for variant in known if label == variant or label.startswith(f"{variant}-")]
    return max(fitting, key=len, default="custom")


def _init(recipe: dict[str, Any]) -> str | None:
    if recipe.get("weights"):
        return FINE_TUNED
    return str(recipe["init"]) if recipe.get("init") else None


def _read_recipe(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(
            f"{path.parent} has no {path.name}: give the folder of a run that `diffclip train` made"
        )
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not readable YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(recipe, dict):
        raise InputError(f"{path} is not a recipe: expected keys and values")
    return recipe


def _read_validations(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The validations, the later one of each step, and the number of lines left out."""
    rows: list[dict[str, Any]] = []
    skipped = 0
    for row in rows_of(path) if path.is_file() else ():
        if row is None:
            skipped += 1
            continue
        while rows and rows[-1]["step"] >= row["step"]:
            rows.pop()
        rows.append(row)
    return rows, skipped


def _map_correlation(row: dict[str, Any]) -> dict[str, list[float]]:
    """That of the towers whose every layer has a number."""
    told = row.get("map_correlation")
    towers = {tower: told.get(tower) for tower in TOWERS} if isinstance(told, dict) else {}
    return {
        tower: [float(value) for value in values]
        for tower, values in towers.items()
        if isinstance(values, list) and values and all(map(is_number, values))
    }


def _config(recipe: dict[str, Any], source: Path) -> CLIPConfig | None:
    """The model's configuration; None where the recipe is of another version and not read by this one."""
    try:
        return parse_recipe(recipe, str(source)).config()
    except InputError:
        return None
