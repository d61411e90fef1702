"""The numbers of the task `pope`: what they are called, which say better or worse, and what is told first."""

from __future__ import annotations

from collections.abc import Sequence

from diffclip.evaluation.pope_names import OVERALL, POPE, counts_of, is_blind, majority
from diffclip.report.compare import Measure

MERITS = ("accuracy", "precision", "recall", "f1")
"""What more of is better; how often a model says yes is neither good nor bad."""


def pope_name(measure: Measure, name: str) -> str:
    """What was measured, for readers; `name` is the metric's."""
    return f"POPE {name} without the picture" if is_blind(measure.protocol) else f"POPE {name}"


def told_first(measures: Sequence[Measure]) -> list[Measure]:
    """Without the measures of POPE that are no headline: one is the accuracy over its three files, with the picture,
    or the accuracy in each where there is no such mean."""
    averaged = {one.dataset for one in measures if one.task == POPE and one.split == OVERALL}

    def first(one: Measure) -> bool:
        if one.task != POPE:
            return True
        seen = one.metric == "accuracy" and not is_blind(one.protocol)
        return seen and (one.split == OVERALL or one.dataset not in averaged)

    return [one for one in measures if first(one)]


def majority_level(measure: Measure) -> float | None:
    """What always giving the more frequent answer reaches in accuracy or precision; None of other metrics."""
    counts = counts_of(measure.protocol)
    if counts is None or measure.metric not in ("accuracy", "precision"):
        return None
    return majority(*counts)[1][measure.metric]
