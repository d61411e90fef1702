"""Scores: what a task returns, each a number with its interval, its chance level and the outcome of every item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from diffclip.evaluation.metrics import NOT_ASKED, hits_at, mean_per_class_recall
from diffclip.evaluation.records import Record
from diffclip.evaluation.statistics import SHARE, Bounds, class_mean_interval, mean_interval, mean_intervals


@dataclass(frozen=True)
class Score:
    """One number of one model on one set.

    Attributes:
        metric, value, count, low, high, chance: as in `Record`.
        hits: [n] the outcome of each item, for a paired comparison; None where the metric is no plain mean over items.
        clusters: [n] the cluster of each item; None where items are independent.
        facts: other fields of `Record`, such as `layer`, `classes`, `draw` and `protocol`.
    """

    metric: str
    value: float
    count: int
    low: float | None
    high: float | None
    chance: float | None
    hits: NDArray[np.float64] | None = None
    clusters: NDArray[np.int64] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def record(self, **facts: Any) -> Record:
        """Make the record of this score from its own fields and `facts`, which its own facts override."""
        own = {name: getattr(self, name) for name in ("metric", "value", "count", "low", "high", "chance")}
        return Record.model_validate({**own, **facts, **self.facts})


def with_facts(scores: Iterable[Score], **facts: Any) -> list[Score]:
    """Add `facts` that all scores of a task share."""
    return [replace(score, facts={**score.facts, **facts}) for score in scores]


def mean_score(
    metric: str,
    hits: NDArray[np.float64],
    chance: float | None,
    clusters: NDArray[np.int64] | None = None,
    bounds: Bounds = SHARE,
) -> Score:
    """Score the mean of `hits` [n] within `bounds`; items of one cluster are resampled together."""
    low, high = mean_interval(hits, clusters, bounds)
    return Score(metric, float(hits.mean()), len(hits), low, high, chance, hits, clusters)


def recall_score(metric: str, ranks: Tensor, k: int, chance: float, clusters: Tensor | None = None) -> Score:
    """Score the share of the items with rank below `k`; `clusters` [n] as in `mean_score`."""
    groups = None if clusters is None else clusters[ranks != NOT_ASKED].numpy()
    return mean_score(metric, hits_at(ranks, k).numpy(), chance, groups)


def class_recall_score(metric: str, ranks: Tensor, labels: Tensor, chance: float) -> Score:
    """Score the mean over classes of each class's accuracy."""
    low, high = class_mean_interval(hits_at(ranks, 1).numpy(), labels.numpy())
    return Score(metric, mean_per_class_recall(ranks, labels), len(ranks), low, high, chance)


class Layered(NamedTuple):
    """A measure of each item: its headline [n], by layer [n, L], and by layer and head [n, L, H]; L and H may be 0."""

    headline: Tensor
    layers: Tensor
    heads: Tensor

    @classmethod
    def of(cls, headline: Tensor) -> Layered:
        """Make a measure that has only a headline."""
        return cls(headline, headline.new_empty(len(headline), 0), headline.new_empty(len(headline), 0, 0))


def layered_scores(
    table: Mapping[tuple[str | None, str], Layered],
    chance: Callable[[str | None, str], float | None],
    bounds: Callable[[str | None, str], Bounds] = lambda map, metric: None,
    clusters: NDArray[np.int64] | None = None,
) -> list[Score]:
    """Score measures by map and metric: first all headlines, with their outcomes, then all layers, then all heads."""
    columns: list[tuple[tuple[str | None, str], int | None, int | None, Tensor]] = []
    columns += [(key, None, None, own.headline) for key, own in table.items()]
    columns += [
        (key, layer, None, values)
        for key, own in table.items()
        for layer, values in enumerate(own.layers.unbind(1), 1)
    ]
    columns += [
        (key, layer + 1, head + 1, own.heads[:, layer, head])
        for key, own in table.items()
        for layer, head in np.ndindex(*own.heads.shape[1:])
    ]
    outcomes = np.stack([values.numpy() for *_, values in columns], axis=1)
    intervals = mean_intervals(outcomes, clusters, [bounds(*key) for key, *_ in columns]).tolist()
    scores = []
    for (key, layer, head, values), (low, high) in zip(columns, intervals, strict=True):
        map, metric = key
        score = Score(metric, float(values.numpy().mean()), len(values), low, high, chance(map, metric))
        if layer is None:
            score = replace(score, hits=values.numpy(), clusters=clusters)
        scores += with_facts([score], map=map, layer=layer, head=head)
    return scores
