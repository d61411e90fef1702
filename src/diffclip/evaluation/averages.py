"""Averages over sets as the paper's Figures 1, 3 and 5 show them: six tasks, and the shifts of a set.

An average is a record like any other. Its field `of` names the sets, and their splits other than `test`. Half-widths
of intervals are combined as standard errors are. For sets of the same images (corrupted copies) they are added, which
gives the widest possible interval.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from diffclip.data.published_sets import base_of, images_of
from diffclip.evaluation.records import Record

SIX_TASKS, OUT_OF_DOMAIN = DERIVED = "six-tasks", "out-of-domain"
PANELS = ("linear probing", "few-shot", "image retrieval", "text retrieval", "zero-shot", "out of domain")
"""The tasks of the paper's Figures 1 and 5, in its order; records of the task `six-tasks` have them as `dataset`."""
AVERAGE, MEAN_OF_SHIFTS, MEAN_OF_ALL, DROP = "average", "mean_of_shifts", "mean_of_all", "drop"

_IMAGENET = "imagenet1k"
# spellings in folder names and in clip_benchmark
_PER_CLASS = re.compile(
    r"aircraft|flowers|caltech[-_ ]?101(?!\d)|(?<![a-z])(oxford[-_ ]?)?(iiit[-_ ]?)?pets?(?![a-z])"
)


def headline_metric(dataset: str) -> str:
    """Return the metric that chooses the cost of a linear probe on a set, and that reports show.

    As in lgssl, it is the mean over classes for aircraft, pets, Caltech-101 and flowers.
    """
    return "mean_per_class_recall" if _PER_CLASS.search(dataset.lower()) else "acc1"


def with_averages(records: Iterable[Record]) -> list[Record]:
    """Return the records with the averages over them; averages among the records are replaced."""
    measured = [record for record in records if record.task not in DERIVED]
    models: dict[tuple[str, str, int | None], list[Record]] = {}
    for record in measured:
        if record.value is not None:
            models.setdefault((record.model, record.weights, record.seed), []).append(record)
    return measured + [average for own in models.values() for average in _averages(own)]


def _averages(records: Sequence[Record]) -> list[Record]:
    """Return the averages of one trained model. Tasks with random draws get one per draw that all their sets share.

    If a set has several splits, "test" counts, else the last by name; with several numbers of templates, the largest.
    """
    measure = attrgetter("task", "dataset", "metric", "corruption", "severity")
    how = attrgetter("split", "templates")  # the same for all draws
    ranked = sorted(records, key=lambda one: (one.split == "test", one.split, one.templates or 0))
    chosen = {measure(one): how(one) for one in ranked}  # the last one wins
    records = [one for one in ranked if how(one) == chosen[measure(one)]]
    records.sort(key=lambda one: (one.dataset != _IMAGENET, one.dataset, one.split, one.corruption or ""))
    plain = [one for one in records if one.corruption is None and base_of(one.dataset) is None]
    accuracies = [one for one in records if one.task == "zero-shot" and one.metric == "acc1"]
    zero_shot = [one for one in plain if one.task == "zero-shot" and one.metric == "acc1"]
    probes = [one for one in plain if one.task == "linear-probe"]
    panels = {
        "linear probing": [one for one in probes if one.metric == headline_metric(one.dataset)],
        "few-shot": [one for one in plain if one.task == "few-shot"],
        "image retrieval": [one for one in plain if one.metric == "image_retrieval_recall@5"],
        "text retrieval": [one for one in plain if one.metric == "text_retrieval_recall@5"],
        "zero-shot": [one for one in zero_shot if one.dataset == _IMAGENET] or zero_shot,
    }
    found = [
        _mean(parts, SIX_TASKS, panel, AVERAGE, draw)
        for panel, own in panels.items()
        for draw, parts in _by_draw(own).items()
    ]
    # first the bases with shifted sets, then those with corruptions
    sets_of = [[one for one in accuracies if base_of(one.dataset) == base.dataset] for base in zero_shot]
    copies_of = [
        [one for one in accuracies if one.corruption and one.dataset == base.dataset] for base in zero_shot
    ]
    shifted = [(base, own) for base, own in zip(zero_shot * 2, sets_of + copies_of, strict=True) if own]
    if shifted:  # the paper's panel is about one base
        found.append(_mean(shifted[0][1], SIX_TASKS, "out of domain", AVERAGE))
    for base, shifts in shifted:
        mean = _mean(shifts, OUT_OF_DOMAIN, base.dataset, MEAN_OF_SHIFTS)
        whole = _mean([base, *shifts], OUT_OF_DOMAIN, base.dataset, MEAN_OF_ALL)
        found += [mean, whole, _drop(base, shifts, mean)]
    return found


def _by_draw(records: Sequence[Record]) -> dict[int | None, list[Record]]:
    """Group by draw. Only draws that every set has are kept; a set without draws belongs to each of them."""
    sets: dict[tuple[str, str], dict[int | None, Record]] = {}
    for one in records:
        sets.setdefault((one.dataset, one.split), {})[one.draw] = one
    draws = {draw for own in sets.values() for draw in own if draw is not None}
    if not draws:
        return {None: list(records)} if records else {}
    shared = [draw for draw in sorted(draws) if all(draw in own or None in own for own in sets.values())]
    return {draw: [own[draw] if draw in own else own[None] for own in sets.values()] for draw in shared}


def _mean(parts: Sequence[Record], task: str, dataset: str, metric: str, draw: int | None = None) -> Record:
    chances = [one.chance for one in parts if one.chance is not None]
    value = sum(_value(one) for one in parts) / len(parts)
    below, above = _half(parts, upper=False), _half(parts, upper=True)
    names = tuple(map(_name, parts))
    templates = {one.templates for one in parts}
    fields: dict[str, Any] = {
        "task": task,
        "dataset": dataset,
        "split": "test",
        "metric": metric,
        "draw": draw,
        "of": names,
        "value": value,
        "count": sum(one.count for one in parts),
        "low": None if below is None else value - below / len(parts),
        "high": None if above is None else value + above / len(parts),
        "chance": sum(chances) / len(parts) if len(chances) == len(parts) else None,
        "protocol": f"mean over {', '.join(names)}; intervals of the sets combined",
        "templates": templates.pop() if len(templates) == 1 else None,
        **dict.fromkeys(("classes", "corruption", "severity", "seconds")),
    }
    return parts[0].model_copy(update=fields)


def _name(record: Record) -> str:
    split = "" if record.split == "test" else f", {record.split}"
    return record.dataset + split + (f", {record.corruption} {record.severity}" if record.corruption else "")


def _drop(base: Record, shifts: Sequence[Record], mean: Record) -> Record:
    value = _value(base) - _value(mean)
    low = high = None
    if base.low is not None and base.high is not None and mean.low is not None and mean.high is not None:
        same = all(images_of(one.dataset) == images_of(base.dataset) for one in shifts)
        join = sum if same else lambda halves: math.hypot(*halves)
        low = value - join([_value(base) - base.low, mean.high - _value(mean)])
        high = value + join([base.high - _value(base), _value(mean) - mean.low])
    count, protocol = base.count + mean.count, f"{base.dataset} minus the {mean.protocol}"
    update = {"metric": DROP, "value": value, "low": low, "high": high, "chance": None}
    return mean.model_copy(update={**update, "count": count, "protocol": protocol})


def _value(record: Record) -> float:
    return record.value or 0.0  # `with_averages` has left out records without a value


def _half(parts: Sequence[Record], upper: bool) -> float | None:
    """Return one half of the interval of the sum; None if a part has no interval."""
    added: dict[tuple[str, str], float] = {}
    for one in parts:
        if one.low is None or one.high is None:
            return None
        images = images_of(one.dataset), one.split
        half = one.high - _value(one) if upper else _value(one) - one.low
        added[images] = added.get(images, 0.0) + half
    return math.hypot(*added.values())
