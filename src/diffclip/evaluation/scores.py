"""Scores, the results of a task: each is a number with its interval and its chance level."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffclip.evaluation.metrics import chance_at, hits_at, mean_per_class
from diffclip.evaluation.records import Record
from diffclip.evaluation.statistics import class_mean_interval, mean_interval, mean_intervals
from diffclip.names import metric_of


@dataclass(frozen=True)
class Score:
    """One number of one model on one set.

    Attributes:
        metric, value, count, low, high, chance: as in `Record`.
        facts: other fields of `Record`, such as `layer`, `classes`, `draw` and `protocol`.
    """

    metric: str
    value: float
    count: int
    low: float | None
    high: float | None
    chance: float | None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def record(self, **facts: Any) -> Record:
        """Make the record of this score from its own fields and `facts`; its own facts take precedence."""
        fields = {name: getattr(self, name) for name in ("metric", "value", "count", "low", "high", "chance")}
        return Record.model_validate({**fields, **facts, **self.facts})


def with_facts(scores: Iterable[Score], **facts: Any) -> list[Score]:
    """Add `facts` that all scores of a task share."""
    return [replace(score, facts={**score.facts, **facts}) for score in scores]


def mean_score(
    metric: str, hits: NDArray[np.float64], chance: float | None, clusters: NDArray[np.int64] | None = None
) -> Score:
    """Score the mean of `hits` [n]; items of one cluster are resampled together."""
    low, high = mean_interval(hits, clusters, metric_of(metric).bounds)
    return Score(metric, float(hits.mean()), len(hits), low, high, chance)


def recall_score(metric: str, ranks: Tensor, k: int, chance: float, clusters: Tensor | None = None) -> Score:
    """Score the share of the items with rank below `k`; `clusters` [n] as in `mean_score`."""
    groups = None if clusters is None else clusters.numpy()
    return mean_score(metric, hits_at(ranks, k).numpy(), chance, groups)


def class_mean_score(
    metric: str,
    hits: NDArray[np.float64],
    labels: NDArray[np.int64],
    chance: float,
    clusters: NDArray[np.int64] | None = None,
) -> Score:
    """Score the mean over classes of each class's mean of `hits` [n]; `clusters` as in `mean_score`."""
    value = mean_per_class(torch.from_numpy(hits), torch.from_numpy(labels))
    return Score(metric, value, len(hits), *class_mean_interval(hits, labels, clusters), chance)


def accuracy_scores(ranks: Tensor, labels: Tensor, classes: int) -> list[Score]:
    """Score `acc1` and `mean_per_class_recall` of a classifier."""
    chance, hits = chance_at(1, classes), hits_at(ranks, 1).numpy()
    by_class = class_mean_score("mean_per_class_recall", hits, labels.numpy(), chance)
    return [mean_score("acc1", hits, chance), by_class]


DIFFERENCE = "A1_minus_A2"
"""The map whose metrics are those of A1 minus those of A2."""


class MapMetric(NamedTuple):
    """A metric of a map: over all layers (`layer` None), of one layer, or of one head; both are counted from 1."""

    map: str | None
    metric: str
    layer: int | None = None
    head: int | None = None


def by_layer(
    map: str | None, metric: str, values: Tensor, with_heads: bool = True
) -> dict[MapMetric, Tensor]:
    """Key the values of heads [n, L, H] or layers [n, L] of a metric, and their means, by `MapMetric`: [n] each."""
    layers = values.mean(2) if values.ndim == 3 else values
    table = {MapMetric(map, metric): values.flatten(1).mean(1)}
    table |= {MapMetric(map, metric, layer): own for layer, own in enumerate(layers.unbind(1), 1)}
    if values.ndim == 3 and with_heads:
        indices = np.ndindex(*values.shape[1:])
        table |= {MapMetric(map, metric, i + 1, j + 1): values[:, i, j] for i, j in indices}
    return table


def map_scores(
    table: Mapping[MapMetric, Tensor],
    chance: Callable[[MapMetric], float | None],
    clusters: NDArray[np.int64] | None = None,
) -> list[Score]:
    """Score values [n] by map and metric: first all headlines, then all layers, then all heads."""
    keys = sorted(table, key=lambda key: (key.layer is not None, key.head is not None))
    outcomes = [table[key].numpy() for key in keys]
    bounds = [(-1.0, 1.0) if key.map == DIFFERENCE else metric_of(key.metric).bounds for key in keys]
    intervals = mean_intervals(np.stack(outcomes, axis=1), clusters, bounds)
    return [
        Score(
            *(key.metric, float(values.mean()), len(values), low, high, chance(key)),
            facts={"map": key.map, "layer": key.layer, "head": key.head},
        )
        for key, values, (low, high) in zip(keys, outcomes, intervals.tolist(), strict=True)
    ]
