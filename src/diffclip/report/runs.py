"""A run folder read back: its recipe, telemetry, validations, results and λ.

A run may still be going, or may have been killed and resumed. So a line cut short is skipped and counted,
and where a resumed run goes back to an earlier step, what it had written from that step on is replaced.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from diffclip.config import VARIANTS, CLIPConfig, name_of
from diffclip.errors import InputError
from diffclip.evaluation.records import Record, read_records
from diffclip.training.recipe import parse_recipe

Array = npt.NDArray[np.float64]

RECIPE, METRICS, VALIDATION, RESULTS = "recipe.yaml", "metrics.jsonl", "validation.jsonl", "results.jsonl"
TOWERS = ("visual", "text")


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
    records: list[Record]
    skipped: int
    """Lines of the run's JSON-lines files that could not be read (cut short by a kill, or being written)."""

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
    rows, skipped = _read_lines(folder / METRICS)
    if not rows:
        raise InputError(f"{folder / METRICS} holds no complete step yet")
    validation: list[dict[str, Any]] = []
    if (folder / VALIDATION).is_file():
        validation, cut = _read_lines(folder / VALIDATION)
        skipped += cut
    # a run resumed from an earlier step repeats a validation later; until then the old one is not this run's
    validation = [row for row in validation if row["step"] <= rows[-1]["step"]]
    records = read_records(folder / RESULTS) if (folder / RESULTS).is_file() else []
    config = _config(recipe, folder / RECIPE)
    model = records[0].model if records else name_of(config) if config else str(recipe.get("model", "custom"))
    seed = recipe.get("seed")
    return Run(
        folder=folder,
        model=model,
        variant=variant_of_label(model),
        init=str(recipe["init"]) if recipe.get("init") else None,
        seed=int(seed) if seed is not None else None,
        recipe=recipe,
        config=config,
        steps=_columns(rows),
        lambdas={tower: _lambdas(rows, tower) for tower in TOWERS},
        validation=[
            {key: float(value) for key, value in row.items() if _is_number(value)} for row in validation
        ],
        records=records,
        skipped=skipped,
    )


def variant_of_label(label: str) -> str:
    """The variant in a model's label ("DiffCLIP-dynamic" of "DiffCLIP-dynamic-ViT-B-16"), else "custom"."""
    fitting = [variant for variant in VARIANTS if label == variant or label.startswith(f"{variant}-")]
    return max(fitting, key=len, default="custom")


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


def _read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a JSON-lines file, the later one of each step, and the number of lines left out."""
    rows: list[dict[str, Any]] = []
    skipped = 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict) or not _is_number(row.get("step")):
            skipped += 1
            continue
        while rows and rows[-1]["step"] >= row["step"]:
            rows.pop()
        rows.append(row)
    return rows, skipped


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _columns(rows: list[dict[str, Any]]) -> dict[str, Array]:
    names = dict.fromkeys(name for row in rows for name, value in row.items() if _is_number(value))
    return {
        name: np.array([row[name] if _is_number(row.get(name)) else np.nan for row in rows], dtype=np.float64)
        for name in names
    }


def _lambdas(rows: list[dict[str, Any]], tower: str) -> Array:
    values = [(row.get("lambda") or {}).get(tower) or [] for row in rows]
    layers = max(len(row) for row in values)
    return np.array(
        [row if len(row) == layers else [np.nan] * layers for row in values], dtype=np.float64
    ).reshape(len(rows), layers)


def _config(recipe: dict[str, Any], source: Path) -> CLIPConfig | None:
    """The model's configuration; None where the recipe is of another version and not read by this one."""
    try:
        return parse_recipe(recipe, str(source)).config()
    except InputError:
        return None
