"""How far a run is, how fast, and whether it still goes, from what it has written so far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from diffclip.report.runs import Run
from diffclip.report.telemetry_file import Array

Kind = Literal["going", "finished", "stopped"]

# a run that was last heard of longer ago than this (seconds), and than thrice its longest pause, has stopped
_PATIENCE = 600.0
_RECENT = 50  # steps


@dataclass(frozen=True)
class State:
    """What is unknown is None. Times are unix seconds, `left` is of the moment `heard`."""

    kind: Kind
    heard: float
    how: str | None
    """What stopped the run, in one line, if it could still say so."""
    step: int
    steps: int | None
    epoch: int | None
    epochs: int | None
    samples: int | None
    rate: float | None
    """Samples a second over recent steps."""
    data_wait: float | None
    """Share of the time of recent steps, 0 to 1."""
    left: float | None
    """Seconds to the end; None where the run does not go."""

    @property
    def share(self) -> float | None:
        """Of the steps that are done."""
        return min(self.step / self.steps, 1.0) if self.steps else None


def state_of(run: Run, now: float) -> State:
    """The state of `run` at `now` (unix seconds).

    A run of an earlier version tells neither times nor starts: it was last heard of when its file was written to, and
    its steps are counted from its epochs.
    """
    step = int(run.steps["step"][-1])
    steps = total_steps(run)
    times = _finite(run, "time")
    ended = _ended(run, step)
    heard = max(float(times[-1]) if len(times) else run.written, float(ended.get("time", 0.0)))
    kind: Kind = "going"
    if ended.get("how") == "finished" or (steps is not None and step >= steps):
        kind = "finished"
    elif ended or now - heard > max(_PATIENCE, 3 * _longest_pause(run)):
        kind = "stopped"
    rate, wait = _recent(run, "samples_per_second"), _recent(run, "data_wait")
    samples, epochs = _last(run, "samples"), run.recipe.get("epochs")
    how = ended.get("how") if kind == "stopped" else None
    return State(
        kind=kind,
        heard=heard,
        how=str(how) if how else None,
        step=step,
        steps=steps,
        epoch=_last(run, "epoch"),
        epochs=epochs if isinstance(epochs, int) else None,
        samples=samples,
        rate=rate,
        data_wait=wait,
        left=_left(run, step, steps, rate) if kind == "going" else None,
    )


def total_steps(run: Run) -> int | None:
    """Of the whole run: as its last start said, or else the epochs' number times their length, where that shows."""
    for start in reversed(run.starts):
        steps = start.get("steps")
        if isinstance(steps, int) and steps > 0:
            return steps
    epochs = run.recipe.get("epochs")
    length = _epoch_length(run)
    return epochs * length if isinstance(epochs, int) and length else None


def _epoch_length(run: Run) -> int | None:
    """Steps an epoch: validations come at the ends of epochs, and between two steps of two epochs lies an end."""
    for row in run.validation:
        if row.get("epoch", 0) >= 1 and row["step"] % row["epoch"] == 0:
            return int(row["step"] // row["epoch"])
    epochs = run.steps.get("epoch")
    if epochs is None:
        return None
    turns = np.flatnonzero(np.diff(epochs) == 1)
    if not len(turns):
        return None
    steps, done = run.steps["step"], epochs[turns]
    least = math.ceil(np.max(steps[turns] / done))
    most = math.floor(np.min((steps[turns + 1] - 1) / done))
    return least if least == most else None


def _ended(run: Run, step: int) -> dict[str, Any]:
    """How the last start ended, if it did; a run that has gone on since has not."""
    ended = run.starts[-1].get("ended") if run.starts else None
    return ended if isinstance(ended, dict) and ended.get("step", step) >= step else {}


def _longest_pause(run: Run) -> float:
    """Between two records of one start: a validation, a checkpoint, an epoch's beginning."""
    times = _finite(run, "time")
    begun = [start.get("time") for start in run.starts[-1:]]
    first = next((time for time in begun if isinstance(time, int | float)), -math.inf)
    gaps = np.diff(times[times >= first])
    return float(gaps.max()) if len(gaps) else 0.0


def _left(run: Run, step: int, steps: int | None, rate: float | None) -> float | None:
    told = run.steps.get("seconds_left")
    if told is not None and math.isfinite(told[-1]):
        return float(told[-1])
    batch = run.recipe.get("batch_size")
    if steps is None or not rate or not isinstance(batch, int):
        return None
    return (steps - step) * batch / rate


def _recent(run: Run, name: str) -> float | None:
    """The median over recent steps, which a pause or a start does not move."""
    known = _finite(run, name)[-_RECENT:]
    return float(np.median(known)) if len(known) else None


def _finite(run: Run, name: str) -> Array:
    values = run.steps.get(name, np.empty(0))
    known: Array = values[np.isfinite(values)]
    return known


def _last(run: Run, name: str) -> int | None:
    known = _finite(run, name)
    return int(known[-1]) if len(known) else None
