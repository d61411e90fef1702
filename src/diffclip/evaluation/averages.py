"""Averages over sets as the paper's Figures 1, 3 and 5 show them: six tasks, and the shifts of a set.

An average is a record like any other. Its field `of` names the sets, and their splits other than `test`. Half-widths
of intervals are combined as standard errors are. For sets of the same images (scenes by shape and by color) they are
added, which gives the widest possible interval.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from diffclip.data.published_sets import base_of, images_of
from diffclip.evaluation.records import Record
from diffclip.names import HEADLINES

SIX_TASKS, OUT_OF_DOMAIN = DERIVED = "six-tasks", "out-of-domain"
AVERAGE, MEAN_OF_SHIFTS = "average", "mean_of_shifts"
PANELS: dict[str, tuple[str, str | None]] = {
    "linear probing": ("linear-probe", None),
    "few-shot": ("few-shot", "acc1"),
    "image retrieval": ("retrieval", "image_retrieval_recall@5"),
    "text retrieval": ("retrieval", "text_retrieval_recall@5"),
    "zero-shot": ("zero-shot", "acc1"),
    "out of domain": (OUT_OF_DOMAIN, MEAN_OF_SHIFTS),
}
"""The tasks of Figures 1 and 5, in the paper's order: task and metric (None: `headline_metric`) of the records that
they average. "out of domain" is the mean over the shifts of one base. Records of the task `six-tasks` have these names
as `dataset`."""

_IMAGENET = "imagenet1k"
# spellings in folder names and in clip_benchmark
_PER_CLASS = re.compile(
    r"aircraft|flowers|caltech[-_ ]?101(?!\d)|(?<![a-z])(oxford[-_ ]?)?(iiit[-_ ]?)?pets?(?![a-z])"
)


def headline_metric(dataset: str) -> str:
    """Return the metric that chooses the cost of a linear probe on a set.

    As in lgssl, it is the mean over classes for aircraft, pets, Caltech-101 and flowers.
    """
    return "mean_per_class_recall" if _PER_CLASS.search(dataset.lower()) else "acc1"


def headline_metrics(task: str, dataset: str) -> tuple[str, ...]:
    """Return the metrics by which a task on a set is shown; none: the first that it records."""
    return (headline_metric(dataset),) if task == "linear-probe" else HEADLINES.get(task, ())


def with_averages(records: Iterable[Record]) -> list[Record]:
    """Return the records with the averages over them; averages among the records are replaced."""
    measured = [record for record in records if record.task not in DERIVED]
    models: dict[tuple[str, str, int | None], list[Record]] = {}
    for record in measured:
        if record.value is not None:
            models.setdefault((record.model, record.weights, record.seed), []).append(record)
    return measured + [average for group in models.values() for average in _averages(group)]


def _averages(records: Sequence[Record]) -> list[Record]:
    """Return the averages of one trained model. Tasks with random draws get one per draw that all their sets share.

    If a set has several splits, "test" counts, else the last by name; with several numbers of templates, the largest.
    """
    measure = attrgetter("task", "dataset", "metric")
    variant = attrgetter("split", "templates")  # the same for all draws
    ranked = sorted(records, key=lambda one: (one.split == "test", one.split, one.templates or 0))
    chosen = {measure(record): variant(record) for record in ranked}  # the last one wins
    records = [record for record in ranked if variant(record) == chosen[measure(record)]]
    records.sort(key=lambda one: (one.dataset != _IMAGENET, one.dataset, one.split))
    plain = [record for record in records if base_of(record.dataset) is None]
    accuracies = [record for record in records if record.task == "zero-shot" and record.metric == "acc1"]
    averages, bases = list[Record](), list[Record]()
    for panel, (task, metric) in PANELS.items():
        parts = [one for one in plain if one.task == task]
        parts = [one for one in parts if one.metric == (metric or headline_metric(one.dataset))]
        if panel == "zero-shot":
            bases = parts
            parts = [base for base in bases if base.dataset == _IMAGENET] or bases
        averages += [_mean(own, SIX_TASKS, panel, AVERAGE, draw) for draw, own in _by_draw(parts).items()]
    names = dict.fromkeys(base.dataset for base in bases)
    shifts = {name: [one for one in accuracies if base_of(one.dataset) == name] for name in names}
    shifts = {base: own for base, own in shifts.items() if own}
    for own in list(shifts.values())[:1]:  # the paper's panel is about one base
        averages.append(_mean(own, SIX_TASKS, "out of domain", AVERAGE))
    return averages + [_mean(own, OUT_OF_DOMAIN, base, MEAN_OF_SHIFTS) for base, own in shifts.items()]


def _by_draw(records: Sequence[Record]) -> dict[int | None, list[Record]]:
    """Group by draw. Only draws that every set has are kept; a set without draws belongs to each of them."""
    sets: dict[tuple[str, str], dict[int | None, Record]] = {}
    for record in records:
        sets.setdefault((record.dataset, record.split), {})[record.draw] = record
    draws = sorted({record.draw for record in records if record.draw is not None}) or [None][: len(records)]
    groups = {draw: [own.get(draw, own.get(None)) for own in sets.values()] for draw in draws}
    return {draw: [one for one in own if one] for draw, own in groups.items() if all(own)}


def _mean(parts: Sequence[Record], task: str, dataset: str, metric: str, draw: int | None = None) -> Record:
    chances = [part.chance for part in parts if part.chance is not None]
    value = sum(_value(part) for part in parts) / len(parts)
    below, above = _half_widths(parts)
    names = tuple(map(_name, parts))
    templates = {part.templates for part in parts}
    fields: dict[str, Any] = {
        **{"task": task, "dataset": dataset, "split": "test", "metric": metric, "draw": draw, "of": names},
        **dict.fromkeys(("classes", "seconds")),
        "value": value,
        "count": sum(part.count for part in parts),
        "low": None if below is None else value - below / len(parts),
        "high": None if above is None else value + above / len(parts),
        "chance": sum(chances) / len(parts) if len(chances) == len(parts) else None,
        "protocol": f"mean over {', '.join(names)}; intervals of the sets combined",
        "templates": templates.pop() if len(templates) == 1 else None,
    }
    return parts[0].model_copy(update=fields)


def _name(record: Record) -> str:
    return record.dataset + ("" if record.split == "test" else f", {record.split}")


def _value(record: Record) -> float:
    return record.value or 0.0  # `with_averages` has left out records without a value


def _half_widths(parts: Sequence[Record]) -> tuple[float, float] | tuple[None, None]:
    """Return the lower and the upper half of the interval of the sum; None if a part has no interval."""
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for part in parts:
        if part.low is None or part.high is None:
            return None, None
        images = images_of(part.dataset), part.split
        below, above = sums.get(images, (0.0, 0.0))
        sums[images] = below + (_value(part) - part.low), above + (part.high - _value(part))
    below, above = (math.hypot(*halves) for halves in zip(*sums.values(), strict=True))
    return below, above
