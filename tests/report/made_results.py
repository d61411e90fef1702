"""Runs and records with values given by hand, and the outcomes of their items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from run_folders import make_run, records

from diffclip.evaluation.averages import OUT_OF_DOMAIN, SIX_TASKS
from diffclip.evaluation.outcomes import ItemOutcomes, key_of
from diffclip.evaluation.protocol import drawn, with_particulars
from diffclip.evaluation.records import Record
from diffclip.report.compare import Comparison, compare
from diffclip.report.runs import Run, read_run
from diffclip.report.series import Collection


def runs_of(folder: Path, levels: Mapping[str, float], seeds: int, init: str = "matched") -> list[Run]:
    """Runs of each model in `levels` for each seed."""
    return [
        read_run(make_run(folder / f"{model}-s{seed}", model, seed, init, level=level))
        for model, level in levels.items()
        for seed in range(seeds)
    ]


def record(
    variant: str, metric: str, value: float | None, seed: int = 0, draw: int | None = None, **changes: object
) -> Record:
    """A zero-shot number on scenes unless `changes` say otherwise; with `draw` it is of that draw."""
    made = records(variant, seed, 0.5, f"{variant}-s{seed}.pt", np.random.default_rng(0))[0]
    made = made.model_copy(update={"metric": metric, "value": value, **changes})
    if draw is None:
        return made
    return made.model_copy(update={"protocol": with_particulars(made.protocol, drawn(draw))})


def with_items(
    variant: str, hits: Sequence[float], clusters: Sequence[int] | None = None, **changes: object
) -> tuple[Record, dict[str, ItemOutcomes]]:
    """A number with the outcomes that it is the mean of; its interval is ±0.3."""
    values = np.array(hits, dtype=np.float64)
    value = float(values.mean())
    made = record(variant, "acc1", value, low=value - 0.3, high=value + 0.3, count=len(values), **changes)  # type: ignore[arg-type]
    own = ItemOutcomes(values, None if clusters is None else np.array(clusters))
    return made, {key_of(made): own}


def measured(collection: Collection) -> list[Comparison]:
    """The comparisons of what was measured, without averages over sets."""
    return [one for one in compare(collection) if one.measure.task not in (SIX_TASKS, OUT_OF_DOMAIN)]
