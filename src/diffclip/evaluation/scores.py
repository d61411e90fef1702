"""What a task finds out about a model: values with intervals, chance levels and the outcome of every item."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from diffclip.evaluation.focus_names import bounds
from diffclip.evaluation.intervals import Interval, class_mean_interval, difference_interval, mean_interval
from diffclip.evaluation.metrics import NOT_ASKED, hits_at, mean_per_class_recall
from diffclip.evaluation.records import Record
from diffclip.evaluation.significance import PairedTest, paired_test


@dataclass(frozen=True)
class Score:
    """One metric of one model: a fraction in [0, 1], but of the task `focus` whatever `focus_names.bounds` says.

    `low` and `high` bound the 95 % interval, `count` is the number of items averaged over, and `chance` is what
    a random order would get, or of `focus` a map that is the same everywhere. `hits` holds the outcome of each
    item, for a paired comparison, with its cluster (None where the metric is no plain mean over items); of
    few-shot the items are the answers of all episodes.
    """

    metric: str
    value: float
    count: int
    low: float
    high: float
    chance: float
    hits: NDArray[np.float64] | None = None
    clusters: NDArray[np.int64] | None = None

    def gain_over(self, other: Score) -> Interval | None:
        """The 95 % interval of this value minus that of `other` on the same items, paired; None without
        outcomes.

        Raises:
            InputError: the two are not of the same items.
        """
        if self.hits is None or other.hits is None:
            return None
        return difference_interval(self.hits, other.hits, self.clusters, bounds=bounds(self.metric))

    def tested_against(self, other: Score) -> PairedTest | None:
        """The paired test of this value against that of `other` on the same items; None without outcomes.

        Raises:
            InputError: the two are not of the same items.
        """
        if self.hits is None or other.hits is None:
            return None
        return paired_test(self.hits, other.hits, self.clusters)

    @property
    def right(self) -> int | None:
        """How many of the `count` items are right; None where outcomes are not 0 or 1, or of something else."""
        if self.hits is None or len(self.hits) != self.count or not np.isin(self.hits, (0, 1)).all():
            return None
        return int(self.hits.sum())


@dataclass(frozen=True)
class Result:
    """The scores of one task on one split of one set, with how they were measured."""

    task: str
    dataset: str
    split: str
    protocol: str
    scores: list[Score]

    def records(self, model: str, weights: str, seed: int | None = None) -> list[Record]:
        """A flat record a score; `model`, `weights` and the training `seed` say whose they are."""
        return [
            Record(
                model=model,
                weights=weights,
                task=self.task,
                dataset=self.dataset,
                split=self.split,
                metric=score.metric,
                value=score.value,
                count=score.count,
                low=score.low,
                high=score.high,
                seed=seed,
                protocol=self.protocol,
            )
            for score in self.scores
        ]


def recall_score(metric: str, ranks: Tensor, k: int, chance: float, clusters: Tensor | None = None) -> Score:
    """Share of the items with rank below `k`; `clusters` [n] are resampled together (None: no clusters)."""
    hits = hits_at(ranks, k).numpy()
    groups = None if clusters is None else clusters[ranks != NOT_ASKED].numpy()
    low, high = mean_interval(hits, groups)
    return Score(metric, float(hits.mean()), len(hits), low, high, chance, hits, groups)


def class_recall_score(metric: str, ranks: Tensor, labels: Tensor, chance: float) -> Score:
    """Accuracy of each class, averaged over classes."""
    low, high = class_mean_interval(hits_at(ranks, 1).numpy(), labels.numpy())
    return Score(metric, mean_per_class_recall(ranks, labels), len(ranks), low, high, chance)
