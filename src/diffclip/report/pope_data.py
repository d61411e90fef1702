"""The answers to POPE's questions in a collection: by set and split, with the picture and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffclip.evaluation.pope_names import METRICS, POPE, in_order, is_blind, sees
from diffclip.report.compare import Comparison, Measure, by_series, measure_of
from diffclip.report.paired import PairedDifference, paired_difference
from diffclip.report.pope_metrics import MERITS
from diffclip.report.series import Collection, Series
from diffclip.report.told import comparisons_of


@dataclass(frozen=True)
class Split:
    """The questions of one file (or the mean of all), asked with the picture: `place` without a metric.

    `blind` is the same without the picture, None where that was not asked.
    """

    place: Measure
    blind: Measure | None

    @property
    def name(self) -> str:
        return self.place.split

    def measures(self, blind: bool = False) -> list[Measure]:
        """A measure for each of `METRICS`."""
        place = self.blind if blind else self.place
        return [place._replace(metric=metric) for metric in METRICS] if place else []


def pope_sets(collection: Collection) -> list[str]:
    """The sets of which questions were asked."""
    own = [
        one.record for one in collection.results if one.record.task == POPE and one.record.value is not None
    ]
    return list(dict.fromkeys(record.dataset for record in own))


def splits_of(collection: Collection, dataset: str) -> list[Split]:
    """The splits of a set, each as most models were asked it."""
    places = list(
        dict.fromkeys(
            measure_of(one)._replace(metric="")
            for one in collection.results
            if (one.record.task, one.record.dataset) == (POPE, dataset)
        )
    )
    found = []
    for split in in_order([one.split for one in places]):
        own = [one for one in places if one.split == split]
        asked = [one for one in own if not is_blind(one.protocol)] or own
        place = _widest(collection, asked)
        blind = [one for one in own if one != place and is_blind(one.protocol)]
        same = [one for one in blind if sees(one.protocol) == sees(place.protocol)]
        found.append(Split(place, same[0] if same else None))
    return found


def _widest(collection: Collection, places: list[Measure]) -> Measure:
    """The one of `places` that most models have (then the first)."""
    return max(places, key=lambda one: len(by_series(collection.results, one._replace(metric="accuracy"))))


def pope_comparisons(collection: Collection, splits: Sequence[Split]) -> list[Comparison]:
    """The comparisons of all that is told of these splits, corrected for one another: in what says better or worse, and
    was asked with the picture."""
    measures = [one for split in splits for one in split.measures() if one.metric in MERITS]
    return comparisons_of(collection, [one for one in measures if not is_blind(one.protocol)])


def seen_gains(collection: Collection, split: Split) -> dict[Series, dict[int | None, PairedDifference]]:
    """Accuracy with the picture minus without it, on the same questions, by model and training seed."""
    if split.blind is None:
        return {}
    seen, blind = (
        by_series(collection.results, place._replace(metric="accuracy"))
        for place in (split.place, split.blind)
    )
    return {
        series: {
            seed: paired_difference(own, blind[series][seed], collection.outcomes)
            for seed, own in seeds.items()
            if seed in blind[series]
        }
        for series, seeds in seen.items()
        if series in blind
    }
