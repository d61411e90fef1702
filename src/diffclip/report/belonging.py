"""Which training, which of its checkpoints and which run a record is of, told by its weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from diffclip.evaluation.records import Record
from diffclip.report.runs import Run

_STEP = re.compile(r"step_(\d+)")
_COURSE = 3  # checkpoints that make a line


def training_of(record: Record) -> tuple[object, ...]:
    """What tells the training that a record's weights are of."""
    return record.model, Path(record.weights).parent, record.seed


def step_of(record: Record) -> int | None:
    """The step of a run's checkpoint that is named by it."""
    weights = Path(record.weights)
    found = _STEP.match(weights.name) if weights.parent.name == "checkpoints" else None
    return int(found[1]) if found else None


def course_of(records: Sequence[Record]) -> dict[tuple[object, ...], list[tuple[int, Record]]]:
    """The records of each training that was measured at enough steps, by step."""
    found: dict[tuple[object, ...], list[tuple[int, Record]]] = {}
    for record in records:
        step = step_of(record)
        if step is not None:
            found.setdefault(training_of(record), []).append((step, record))
    return {
        training: sorted(steps, key=lambda pair: pair[0])
        for training, steps in found.items()
        if len({step for step, _ in steps}) >= _COURSE
    }


def run_of(record: Record, runs: Sequence[Run]) -> Run | None:
    """The one run in whose folder, by its name, the record's weights lie."""
    weights = Path(record.weights)
    fitting = [run for run in runs if run.name in weights.parts and record.seed in (None, run.seed)]
    if len(fitting) > 1:
        fitting = [run for run in fitting if run.folder in weights.parents]
    return fitting[0] if len(fitting) == 1 else None


def is_ambiguous(record: Record, runs: Sequence[Run]) -> bool:
    """Whether the record may belong to more than one run."""
    return sum(run.name in Path(record.weights).parts for run in runs) > 1
