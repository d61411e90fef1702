"""Run folders read back: recipe, telemetry, validations and starts, also of a run that is still going."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from diffclip.errors import InputError

RECIPE, METRICS, VALIDATION, ABOUT = "recipe.yaml", "metrics.jsonl", "validation.jsonl", "about.json"
TELEMETRY = {
    "accuracy": "accuracy in the batch",
    "lr": "learning rate",
    "logit_scale": "logit scale",
    "grad_norm": "gradient norm",
    "samples_per_second": "samples a second",
}
POINTS = 300
"""Points of a curve on a page."""
_TOWERS = {"visual": "vision", "text": "text"}
# a run that wrote nothing for so many seconds, and did not say how it ended, has stopped
_SILENCE = 600.0
_SEED = re.compile(r"-s\d+$")


@dataclass(frozen=True)
class Run:
    """One training run as its folder tells it.

    Attributes:
        rows: the telemetry, a mapping a step; steps that a resumed run repeated are there once.
        validations: a mapping a validation.
        starts: a mapping a start (`about.json`), oldest first.
        heard: when the telemetry was last written, unix seconds.
    """

    folder: Path
    recipe: dict[str, Any]
    rows: list[dict[str, Any]]
    validations: list[dict[str, Any]]
    starts: list[dict[str, Any]]
    heard: float

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def arm(self) -> str:
        """The run's name without its seed."""
        return _SEED.sub("", self.name)

    @property
    def seed(self) -> int | None:
        return self.recipe.get("seed")

    @property
    def steps(self) -> int | None:
        """The planned number of steps; None where no start told it."""
        return next((start["steps"] for start in reversed(self.starts) if start.get("steps")), None)

    @property
    def ended(self) -> dict[str, Any]:
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
    levels = ([top], sorted(top.glob("*")), sorted(top.glob("*/*")))
    found = [
        one for level in levels for one in level if (one / METRICS).is_file() and (one / RECIPE).is_file()
    ]
    return [one for one in found if (one / METRICS).stat().st_size]


def read_run(folder: str | Path) -> Run:
    """Read a run folder.

    Raises:
        InputError: the folder, its recipe or its telemetry is missing, not readable or without a whole step.
    """
    from diffclip.report.frame import read_lines

    folder = Path(folder)
    for name in (RECIPE, METRICS):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder} has no {name}: give the folder of a run that `diffclip train` has begun"
            )
    try:
        recipe = yaml.safe_load((folder / RECIPE).read_text("utf-8"))
        starts = (
            json.loads((folder / ABOUT).read_text("utf-8"))["starts"] if (folder / ABOUT).is_file() else []
        )
    except (OSError, ValueError, KeyError, yaml.YAMLError) as error:
        raise InputError(f"cannot read {folder}: {str(error).splitlines()[0]}") from error
    if not isinstance(recipe, dict):
        raise InputError(f"{folder / RECIPE} is not a recipe: expected keys and values")
    rows = _latest(read_lines(folder / METRICS))
    if not rows:
        raise InputError(f"{folder / METRICS} holds no complete step yet")
    validations = _latest(read_lines(folder / VALIDATION)) if (folder / VALIDATION).is_file() else []
    validations = [row for row in validations if row["step"] <= rows[-1]["step"]]
    return Run(folder, recipe, rows, validations, starts, (folder / METRICS).stat().st_mtime)


def curve_of(folder: str | Path, points: int = POINTS) -> dict[str, Any]:
    """Thin a run to `points` steps, in the form of a line of `curves.jsonl`, with `telemetry` added."""
    run = read_run(folder)
    chosen = np.unique(np.linspace(0, len(run.rows) - 1, min(points, len(run.rows))).round().astype(int))
    rows = [run.rows[index] for index in chosen]
    lambdas = {
        name: [row["lambda"][tower] for row in rows]
        for tower, name in _TOWERS.items()
        if all(row.get("lambda", {}).get(tower) for row in rows)
    }
    correlations = {
        name: [row["map_correlation"][tower] for row in run.validations]
        for tower, name in _TOWERS.items()
        if run.validations and all((row.get("map_correlation") or {}).get(tower) for row in run.validations)
    }
    return {
        "run": run.name,
        "group": None,
        "arm": run.arm,
        "seed": run.seed,
        "step": [row["step"] for row in rows],
        "loss": [row.get("loss") for row in rows],
        "lambda": lambdas,
        "validation": {
            "step": [row["step"] for row in run.validations],
            "score": [row.get("score") for row in run.validations],
            "map_correlation": correlations,
        },
        "telemetry": {name: [row.get(name) for row in rows] for name in TELEMETRY if name in rows[-1]},
    }


def run_facts(run: Run, now: float | None = None) -> list[tuple[str, str]]:
    """Tell in pairs of name and text how far a run is, how fast, where it runs and how it was started."""
    now = time.time() if now is None else now
    return [(name, text) for name, text in _facts(run, now) if text]


def _facts(run: Run, now: float) -> Iterator[tuple[str, str]]:
    last, state = run.rows[-1], run.state(now)
    how = f": {run.ended['how']}" if state == "stopped" and run.ended.get("how") else ""
    yield "state", f"{state}{how}, last step {_moment(last.get('time') or run.heard)}"
    total = f" of {run.steps:,} ({100 * last['step'] / run.steps:.0f} %)" if run.steps else ""
    yield "step", f"{last['step']:,}{total}"
    if last.get("epoch") is not None:
        yield "epoch", f"{last['epoch']} of {run.recipe.get('epochs', '?')}"
    if last.get("samples") is not None:
        yield "samples", f"{last['samples']:,}"
    rate = [row["samples_per_second"] for row in run.rows[-50:] if row.get("samples_per_second")]
    if rate:
        wait = (
            f", {100 * last['data_wait']:.0f} % of the time waiting for data" if last.get("data_wait") else ""
        )
        yield "rate", f"{np.median(rate):,.0f} samples a second{wait}"
    if state == "going" and last.get("seconds_left") is not None:
        yield "time left", f"{last['seconds_left'] / 60:,.0f} min"
    settings = ("model", "init", "seed", "batch_size", "lr", "weight_decay", "warmup_epochs", "precision")
    yield (
        "recipe",
        ", ".join(f"{name} {run.recipe[name]}" for name in settings if run.recipe.get(name) is not None),
    )
    if not run.starts:
        return
    start = run.starts[-1]
    machine, processes, versions, git = (
        _part(start, one) for one in ("machine", "processes", "versions", "git")
    )
    gpus = [str(gpu.get("name", "GPU")) for gpu in start.get("gpus") or []]
    hosts = processes.get("hosts") or [machine.get("name")]
    kinds = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    yield (
        "machine",
        "; ".join(filter(None, [", ".join(map(str, hosts)), *kinds, str(machine.get("cpu") or "")])),
    )
    if processes.get("world"):
        kind = ", ".join(str(processes[name]) for name in ("strategy", "precision") if processes.get(name))
        yield "processes", f"{processes['world']} on {processes.get('nodes') or 1} node(s), {kind}"
    commit = f" (commit {str(git['commit'])[:9]}{', with changes' if git.get('dirty') else ''})" * bool(
        git.get("commit")
    )
    named = (f"{name} {versions[name]}" for name in ("diffclip", "torch", "cuda") if versions.get(name))
    yield "software", ", ".join(named) + commit
    data = _part(start, "data")
    if data.get("samples") is not None:
        yield "data", f"{data['samples']:,} samples, fingerprint {data.get('fingerprint')}"
    yield "environment", " ".join(f"{name}={value}" for name, value in _part(start, "environment").items())
    yield "command", str(start.get("command") or "")
    if len(run.starts) > 1:
        yield f"{len(run.starts)} starts", "; ".join(_start(one) for one in run.starts)


def _start(start: Mapping[str, Any]) -> str:
    ended = _part(start, "ended")
    how = f", {ended.get('how')} after step {ended.get('step')}" if ended else ""
    return f"{_moment(start.get('time'))} after step {start.get('step')}{how}"


def _part(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}


def _moment(seconds: Any) -> str:
    return (
        f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
        if isinstance(seconds, (int, float))
        else "at some time"
    )


def _latest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop the rows that a resumed run wrote again."""
    kept: list[dict[str, Any]] = []
    for row in rows:
        if isinstance(row.get("step"), int):
            while kept and kept[-1]["step"] >= row["step"]:
                kept.pop()
            kept.append(row)
    return kept
