"""Scores of one task on one set, with their intervals, chance levels and the outcome of every item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from diffclip.evaluation.metrics import NOT_ASKED, hits_at, mean_per_class_recall
from diffclip.evaluation.records import Record
from diffclip.evaluation.statistics import class_mean_interval, mean_interval


@dataclass(frozen=True)
class Score:
    """One number of one model.

    Attributes:
        value: the number; a fraction in [0, 1] if the metric is a share.
        count: the number of items that it averages.
        low, high: its 95 % interval over items.
        chance: the value of a random order, of `focus` that of a uniform map; None if unknown.
        hits: the outcome of each item, for a paired comparison; None where the metric is no plain mean over items.
        clusters: the cluster of each item; None where items are independent.
        map, layer, head: see `Record`.
    """

    metric: str
    value: float
    count: int
    low: float
    high: float
    chance: float | None
    hits: NDArray[np.float64] | None = None
    clusters: NDArray[np.int64] | None = None
    map: str | None = None
    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True)
class Subject:
    """The model that a record is about: its name, where its weights came from, and how its run trained it."""

    model: str
    weights: str
    seed: int | None = None
    init: str | None = None
    data: str | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Result:
    """The scores of one task on one split of one set; the other fields as in `Record`."""

    task: str
    dataset: str
    split: str
    protocol: str
    scores: Sequence[Score]
    draw: int | None = None
    classes: int | None = None
    templates: int | None = None
    corruption: str | None = None
    severity: int | None = None
    seconds: float | None = None
    faults: Sequence[object] = field(default=(), compare=False)

    def records(self, subject: Subject) -> list[Record]:
        """Return a record a score."""
        shared = {
            "task": self.task,
            "dataset": self.dataset,
            "split": self.split,
            "protocol": self.protocol,
            "draw": self.draw,
            "classes": self.classes,
            "templates": self.templates,
            "corruption": self.corruption,
            "severity": self.severity,
            "seconds": self.seconds,
            **vars(subject),
        }
        own = ("metric", "value", "count", "low", "high", "chance", "map", "layer", "head")
        return [
            Record.model_validate(shared | {name: getattr(score, name) for name in own})
            for score in self.scores
        ]


def mean_score(
    metric: str, hits: NDArray[np.float64], chance: float | None, clusters: NDArray[np.int64] | None = None
) -> Score:
    """Score the mean of `hits` [n]; items of one cluster are resampled together."""
    low, high = mean_interval(hits, clusters)
    return Score(metric, float(hits.mean()), len(hits), low, high, chance, hits, clusters)


def recall_score(metric: str, ranks: Tensor, k: int, chance: float, clusters: Tensor | None = None) -> Score:
    """Score the share of the items with rank below `k`; `clusters` [n] as in `mean_score`."""
    groups = None if clusters is None else clusters[ranks != NOT_ASKED].numpy()
    return mean_score(metric, hits_at(ranks, k).numpy(), chance, groups)


def class_recall_score(metric: str, ranks: Tensor, labels: Tensor, chance: float) -> Score:
    """Score the mean over classes of each class's accuracy."""
    low, high = class_mean_interval(hits_at(ranks, 1).numpy(), labels.numpy())
    return Score(metric, mean_per_class_recall(ranks, labels), len(ranks), low, high, chance)
