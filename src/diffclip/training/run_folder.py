"""The folder of a run: check it, lock it and read it, also during the run. Nothing here imports torch.

`about.json` is {"starts": [{"time", "step", "command", …, "ended": {"time", "step", "how", "peak_memory"}}, …]}.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffclip.errors import InputError, hide_secrets
from diffclip.files import explain_disk_errors, hold_lock, read_json, write_text
from diffclip.training.recipe import FREE_KEYS, Recipe, parse_recipe
from diffclip.training.recipe_file import read_fields

RECIPE_FILE, LOCK_FILE, ABOUT_FILE = "recipe.yaml", ".lock", "about.json"
METRICS_FILE, VALIDATION_FILE = "metrics.jsonl", "validation.jsonl"
FINISHED = "finished"
_TOWERS = {"visual": "vision", "text": "text"}
# a run that wrote nothing for so many seconds, and recorded no end, counts as stopped
_SILENCE = 600.0
SEED = re.compile(r"-s\d+$")
"""The seed at the end of a run's name."""
Row = dict[str, Any]


def is_started(run: Path) -> bool:
    """True if `run` holds checkpoints, also damaged ones."""
    return any((run / "checkpoints").glob("*step_*"))


def check_folder(recipe: Recipe, run: Path, resume: bool) -> None:
    """Check, without writing anything, that a run of `recipe` may start in `run`, or continue there with `resume`.

    `InputError` is raised for other files, a run without `resume`, a run of another recipe, and lost checkpoints.
    """
    names, starts = names_in(run), read_starts(run)
    if is_started(run) and not resume:
        raise InputError(f"{run} holds a run already: add --resume to go on with it, or choose another --run")
    had_steps = any(start.get("step") or start.get("ended", {}).get("how") == FINISHED for start in starts)
    if not is_started(run) and had_steps:
        raise InputError(
            f"{run} has lost its checkpoints: restore that folder, or start a run in another folder"
        )
    # the recipe of another command (`diffclip vlm train`) is refused here
    started = recipe_in(run) if RECIPE_FILE in names else None
    if resume and started is not None:
        free = set(FREE_KEYS)
        if recipe.epochs > started.epochs:  # more epochs extend the run
            free.add("epochs")
        if recipe.precision == "auto":  # the start of the run resolved it
            free.add("precision")
        if change := describe_change(started.model_dump(), recipe.model_dump(), free):
            raise InputError(f"{run} was started with {change}: resume with the same recipe")
    elif RECIPE_FILE not in names and names - {LOCK_FILE, "checkpoints"}:
        raise InputError(f"{run} holds other files: choose a new or an empty folder for --run")


def recipe_in(run: Path) -> Recipe:
    """Read the recipe of a run. Until its first checkpoint its plugins may change: a fault in one may have ended it."""
    path = run / RECIPE_FILE
    fields = read_fields(path)
    return parse_recipe(fields if is_started(run) else {**fields, "plugins": []}, str(path))


def names_in(run: Path) -> set[str]:
    """List the names in the folder of a run, without the files that a killed process was writing."""
    with explain_disk_errors(run):
        return {path.name for path in run.iterdir() if path.suffix != ".tmp"} if run.exists() else set()


def lock_folder(run: Path) -> AbstractContextManager[None]:
    """Keep other processes from training in `run` until the context or this process ends."""
    busy = f"another process trains in {run}: wait for it, or choose another --run"
    return hold_lock(run / LOCK_FILE, busy)


def describe_change(
    before: Mapping[str, Any], now: Mapping[str, Any], free: Collection[str], prefix: str = ""
) -> str | None:
    """Describe the first key outside `free` whose value differs, such as "lr=0.001, not 0.002"; None if all are equal.

    The keys of an inner mapping are named as in "data.train".
    """
    for name in {**before, **now}:
        key, old, new = f"{prefix}{name}", before.get(name), now.get(name)
        if key in free or old == new:
            continue
        if not isinstance(old, dict) or not isinstance(new, dict):
            return f"{key}={json.dumps(old, ensure_ascii=False)}, not {json.dumps(new, ensure_ascii=False)}"
        if change := describe_change(old, new, free, f"{key}."):
            return change
    return None


def add_start(run: Path, facts: Mapping[str, Any]) -> None:
    """Append a start to `about.json` of `run`; a file that cannot be read is replaced."""
    _write_starts(run, [*read_starts(run), dict(facts)])


def record_end(run: Path, how: str, step: int, peak_memory: int) -> None:
    """Record that the last start of `run` ended after `step`; `how` is `FINISHED`, or one line about what stopped it.

    `peak_memory` is in bytes, of the process or of its GPU.
    """
    if starts := read_starts(run):
        facts = {"time": time.time(), "step": step, "how": hide_secrets(how), "peak_memory": peak_memory}
        starts[-1]["ended"] = facts
        _write_starts(run, starts)


def read_starts(run: Path) -> list[Row]:
    """Read the starts of `run`, oldest first; empty if `about.json` is missing or damaged."""
    about = read_json(run / ABOUT_FILE)
    return about.get("starts", []) if isinstance(about, dict) else []


def _write_starts(run: Path, starts: list[Row]) -> None:
    write_text(run / ABOUT_FILE, json.dumps({"starts": starts}, indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Run:
    """One training run, read from its folder. `arm` is its name without the seed."""

    folder: Path
    name: str
    arm: str
    recipe: Row
    rows: list[Row]  # one per record of a step
    validations: list[Row]
    starts: list[Row]  # in `about.json`, oldest first
    write_time: float  # of the last record, unix seconds

    @property
    def steps(self) -> int | None:
        """The planned number of steps; None if no start recorded it."""
        return self.starts[-1].get("steps") if self.starts else None

    @property
    def ended(self) -> Row:
        """The end of the last start; empty while it runs or if it recorded no end."""
        return (self.starts[-1].get("ended") if self.starts else None) or {}

    def state(self, now: float) -> str:
        """Tell whether the run is "going", "finished" or "stopped" at `now` (unix seconds)."""
        if self.ended.get("how") == FINISHED or (self.steps and self.rows[-1]["step"] >= self.steps):
            return "finished"
        return "stopped" if self.ended or now - self.write_time > _SILENCE else "going"


def run_folders(folder: str | Path) -> list[Path]:
    """List the folders of runs that have made a step: `folder` itself, and those up to two levels below it."""
    top = Path(folder)
    candidates = [top, *sorted(top.glob("*")), *sorted(top.glob("*/*"))]
    runs = [path for path in candidates if (path / RECIPE_FILE).is_file() and (path / METRICS_FILE).is_file()]
    return [path for path in runs if (path / METRICS_FILE).stat().st_size]


def read_run(folder: str | Path) -> Run:
    """Read a run's folder; if it cannot be read or the run has made no step, raise `InputError`."""
    folder = Path(folder)
    rows, name = read_lines(folder / METRICS_FILE), folder.resolve().name
    if not rows:
        raise InputError(f"{folder / METRICS_FILE} has no complete step yet: wait for the first step")
    recipe, validations = read_fields(folder / RECIPE_FILE), read_lines(folder / VALIDATION_FILE)
    write_time = (folder / METRICS_FILE).stat().st_mtime
    return Run(folder, name, SEED.sub("", name), recipe, rows, validations, read_starts(folder), write_time)


def read_lines(path: Path) -> list[Row]:
    """Read JSON objects, one per line; a line that was cut off is left out, and a missing file gives none."""
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


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """Write JSON objects, one per line, whole or not at all."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def curve_of(folder: str | Path, points: int = 300) -> Row:
    """Thin the run in `folder` to `points` steps, in the form of a line of `curves.jsonl`."""
    run = read_run(folder)
    names = {"run": run.name, "group": None, "arm": run.arm, "seed": run.recipe.get("seed")}
    return names | curve(run.rows, run.validations, points)


def curve(rows: Sequence[Row], validations: Sequence[Row], points: int) -> Row:
    """Thin steps to `points`, and add all validations."""
    indices = np.unique(np.linspace(0, len(rows) - 1, min(points, len(rows))).astype(int))
    rows = [rows[index] for index in indices]
    return {
        "step": [row["step"] for row in rows],
        "loss": [_round(row.get("loss")) for row in rows],
        "lambda": _by_tower(rows, "lambda"),
        "validation": {
            "step": [row["step"] for row in validations],
            "score": [_round(row.get("score")) for row in validations],
            "map_correlation": _by_tower(validations, "map_correlation"),
        },
    }


def _by_tower(rows: Sequence[Row], key: str) -> dict[str, list[list[float | None]]]:
    """Return the values of layers in each row, by tower; a tower that lacks them in some row is left out."""
    return {
        name: [[_round(value) for value in row[key][tower]] for row in rows]
        for tower, name in _TOWERS.items()
        if rows and all((row.get(key) or {}).get(tower) for row in rows)
    }


def _round(value: float | None) -> float | None:
    """Round to five significant digits; None if the value is missing or not finite."""
    return float(f"{value:.5g}") if value is not None and np.isfinite(value) else None
