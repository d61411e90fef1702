"""Runs and studies read back from their folders, also while a run goes. Nothing here imports torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from diffclip.errors import InputError

STUDY_FILE, RUNS_FILE, CURVES_FILE, TIMING_FILE = "study.yaml", "runs.jsonl", "curves.jsonl", "timing.json"
"""Of a study."""
RECIPE, METRICS, VALIDATION, ABOUT = "recipe.yaml", "metrics.jsonl", "validation.jsonl", "about.json"
"""Of a run."""
Row = dict[str, Any]

_TOWERS = {"visual": "vision", "text": "text"}
# a run that wrote nothing for so many seconds, and did not say how it ended, has stopped
_SILENCE = 600.0
SEED = re.compile(r"-s\d+$")
"""The end of a run's name."""


@dataclass(frozen=True)
class Run:
    """One training run as its folder tells it.

    Attributes:
        rows: the telemetry, one mapping per step; steps that a resumed run repeated are there once.
        validations: one mapping per validation.
        starts: one mapping per start (`about.json`), oldest first.
        heard: when the telemetry was last written, unix seconds.
    """

    folder: Path
    recipe: Row
    rows: list[Row]
    validations: list[Row]
    starts: list[Row]
    heard: float

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    @property
    def arm(self) -> str:
        """The run's name without its seed."""
        return SEED.sub("", self.name)

    @property
    def seed(self) -> int | None:
        """The training seed."""
        return self.recipe.get("seed")

    @property
    def steps(self) -> int | None:
        """The planned number of steps; None where no start told it."""
        return next((start["steps"] for start in reversed(self.starts) if start.get("steps")), None)

    @property
    def ended(self) -> Row:
        """The end of the last start; empty while it goes or if it left no word."""
        ended = self.starts[-1].get("ended") if self.starts else None
        return ended if isinstance(ended, dict) and ended.get("step", 0) >= self.rows[-1]["step"] else {}

    def state(self, now: float) -> str:
        """Tell whether the run is "going", "finished" or "stopped" at `now` (unix seconds)."""
        if self.ended.get("how") == "finished" or (self.steps and self.rows[-1]["step"] >= self.steps):
            return "finished"
        return "stopped" if self.ended or now - self.heard > _SILENCE else "going"


def run_folders(folder: str | Path) -> list[Path]:
    """List the runs that have made a step: `folder` itself, or those up to two levels below it."""
    top = Path(folder)
    places = [top, *sorted(top.glob("*")), *sorted(top.glob("*/*"))]
    found = [one for one in places if (one / RECIPE).is_file() and (one / METRICS).is_file()]
    return [one for one in found if (one / METRICS).stat().st_size]


def read_run(folder: str | Path) -> Run:
    """Read a run folder that has made a step.

    Raises:
        InputError: it has not, or its files cannot be read.
    """
    folder = Path(folder)
    for name in (RECIPE, METRICS):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder} has no {name}: give the folder of a run that `diffclip train` has begun"
            )
    about = folder / ABOUT
    try:
        recipe = dict(yaml.safe_load((folder / RECIPE).read_text("utf-8")))
        starts = json.loads(about.read_text("utf-8"))["starts"] if about.is_file() else []
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise InputError(f"cannot read {folder}: {str(error).splitlines()[0]}") from error
    rows = _latest(read_lines(folder / METRICS))
    if not rows:
        raise InputError(f"{folder / METRICS} has no complete step yet: wait for the first step")
    validations = _latest(read_lines(folder / VALIDATION))
    validations = [row for row in validations if row["step"] <= rows[-1]["step"]]
    return Run(folder, recipe, rows, validations, starts, (folder / METRICS).stat().st_mtime)


def read_lines(path: Path) -> list[Row]:
    """Read JSON objects, one per line; a line cut short is left out, and a missing file has none.

    Raises:
        InputError: the file cannot be read.
    """
    if not path.is_file():
        return []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    rows = []
    for line in lines:
        with suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def saved_curves(folders: Iterable[Path]) -> list[Row]:
    """Read the lines of every `curves.jsonl` below `folders`."""
    return [
        row for folder in folders for file in sorted(folder.rglob(CURVES_FILE)) for row in read_lines(file)
    ]


def read_study(folder: Path) -> dict[str, Any]:
    """Read the fields of the study in `folder`.

    Raises:
        InputError: the file cannot be read, or is no study.
    """
    file = folder / STUDY_FILE
    try:
        return dict(yaml.safe_load(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        raise InputError(f"{file} is not a study: remove it, or give another folder") from None


def read_timing(folder: Path) -> dict[str, Any]:
    """Read the step times of a study's arms, see `timing.time_arms`; empty where there are none."""
    file = folder / TIMING_FILE
    return dict(json.loads(file.read_text("utf-8"))["arms"]) if file.is_file() else {}


def curve_of(folder: str | Path, points: int = 300) -> Row:
    """Thin the run in `folder` to `points` steps, in the form of a line of `curves.jsonl`."""
    run = read_run(folder)
    names = {"run": run.name, "group": None, "arm": run.arm, "seed": run.seed}
    return names | curve(run.rows, run.validations, points)


def curve(rows: Sequence[Row], validations: Sequence[Row], points: int) -> Row:
    """Thin steps to `points`, and add all validations."""
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(points, len(rows))).astype(int))
    rows = [rows[index] for index in chosen]
    return {
        "step": [row["step"] for row in rows],
        "loss": [_rounded(row.get("loss")) for row in rows],
        "lambda": _by_tower(rows, "lambda"),
        "validation": {
            "step": [row["step"] for row in validations],
            "score": [_rounded(row.get("score")) for row in validations],
            "map_correlation": _by_tower(validations, "map_correlation"),
        },
    }


def _by_tower(rows: Sequence[Row], key: str) -> dict[str, list[list[float | None]]]:
    """Return the values of layers in each row, by tower; a tower that lacks them in some row is left out."""
    return {
        name: [[_rounded(value) for value in row[key][tower]] for row in rows]
        for tower, name in _TOWERS.items()
        if rows and all((row.get(key) or {}).get(tower) for row in rows)
    }


def _rounded(value: float | None) -> float | None:
    """Five significant digits; None for what is not finite."""
    return float(f"{value:.5g}") if value is not None and np.isfinite(value) else None


def _latest(rows: list[Row]) -> list[Row]:
    """Drop the rows that a resumed run wrote again."""
    kept: list[Row] = []
    for row in rows:
        if isinstance(row.get("step"), int):
            while kept and kept[-1]["step"] >= row["step"]:
                kept.pop()
            kept.append(row)
    return kept
