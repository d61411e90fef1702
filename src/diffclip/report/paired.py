"""The difference of two trained models in one measure: interval and p, from the outcomes of items where they are known.

Both models answered the same items, so their outcomes are paired (`significance.paired_test`, and the bootstrap of
`intervals.difference_interval`). Several draws of a task are averaged item by item, or where each asks other questions
about the same pictures count together for these. An average over sets is tested on the items of all of them together,
each set with its weight; its interval combines those of the sets, as `evaluation.averages` does. Without outcomes the
interval is Newcombe's (1998, method 10, from the intervals of both; it ignores that the items are the same, so it is
rather too wide), and p is that of a normal of the same width.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from diffclip.evaluation.averages import pictures_of
from diffclip.evaluation.focus_names import bounds
from diffclip.evaluation.intervals import Interval, difference_interval
from diffclip.evaluation.outcomes import ItemOutcomes, key_of
from diffclip.evaluation.records import Record
from diffclip.evaluation.significance import paired_test
from diffclip.report.series import Measured

Basis = Literal["items", "intervals", "seeds"]
"""What a difference was tested on: outcomes of items, the intervals of both records, or training seeds."""

_Z = 1.959963984540054
_SAME = 1e-6  # outcomes whose mean is not the record's value are of another measurement


@dataclass(frozen=True)
class PairedDifference:
    """First minus second with its 95 % interval and p, None where the records have no intervals."""

    mean: float
    low: float | None
    high: float | None
    p: float | None
    basis: Basis


@dataclass(frozen=True)
class _Component:
    """One set of an average, or all there is: the records of each draw of both models, and the paired outcomes."""

    weight: float
    own: Sequence[Record]
    reference: Sequence[Record]
    items: tuple[ItemOutcomes, ItemOutcomes] | None

    @property
    def difference(self) -> float:
        ours, theirs = ([one.value or 0.0 for one in records] for records in (self.own, self.reference))
        return statistics.fmean(ours) - statistics.fmean(theirs)


def paired_difference(
    own: Measured, reference: Measured, outcomes: Mapping[str, ItemOutcomes]
) -> PairedDifference:
    """`own` − `reference`, which are of the same measure and draws, with `outcomes` by `key_of` the records."""
    components = [
        _Component(
            weight, ours, theirs, _paired(_outcomes_of(ours, outcomes), _outcomes_of(theirs, outcomes))
        )
        for (weight, ours), (_, theirs) in zip(_parts(own), _parts(reference), strict=True)
    ]
    mean = own.value - reference.value
    groups: dict[tuple[str, str], list[_Component]] = {}
    for one in components:
        groups.setdefault(pictures_of(one.own[0]), []).append(one)
    halves = [_halves(group) for group in groups.values()]
    known = [half for half in halves if half is not None]
    basis: Basis = "items" if all(map(_aligned, groups.values())) else "intervals"
    if len(known) < len(halves):
        return PairedDifference(mean, None, None, None, basis)
    down, up = (math.hypot(*sides) for sides in zip(*known, strict=True))
    p = _items_p(list(groups.values())) if basis == "items" else _normal_p(mean, down if mean > 0 else up)
    return PairedDifference(mean, mean - down, mean + up, p, basis)


def p_of_no_mean(own: Measured, outcomes: Mapping[str, ItemOutcomes]) -> float | None:
    """The two-sided p of a signed number of one training run that would be 0: sign flips of its items' outcomes, or
    where these are not known that of a normal with its interval; None without one."""
    items = _outcomes_of(own.records, outcomes)
    if items is not None:
        return paired_test(items.hits, np.zeros_like(items.hits), items.clusters).p
    halves = _halves_of_records(own.records)
    return None if halves is None else _normal_p(own.value, halves[0] if own.value > 0 else halves[1])


def _parts(measured: Measured) -> list[tuple[float, list[Record]]]:
    """Each set of an average with its weight and its record in every draw."""
    first = measured.results[0]
    if not first.parts:
        return [(1.0, [result.record for result in measured.results])]
    draws = zip(*(result.parts for result in measured.results), strict=True)
    return [(own[0].weight, [part.record for part in own]) for own in draws]


def _outcomes_of(records: Sequence[Record], outcomes: Mapping[str, ItemOutcomes]) -> ItemOutcomes | None:
    """The outcomes of the items in all draws, whose mean is that of the records; None where some are not known."""
    found = []
    for record in records:
        one = outcomes.get(key_of(record))
        if one is None or abs(float(one.hits.mean()) - (record.value or 0.0)) > _SAME:
            return None
        found.append(one)
    if all(_same_items(one, found[0]) for one in found):
        return ItemOutcomes(np.mean([one.hits for one in found], axis=0), found[0].clusters)
    clusters = [one.clusters for one in found if one.clusters is not None]
    if len(clusters) < len(found):
        return None
    # each draw asks about other pictures, and about some more often
    count = sum(len(one.hits) for one in found) / len(found)
    hits = [count / len(one.hits) * one.hits for one in found]
    return ItemOutcomes(np.concatenate(hits), np.concatenate(clusters))


def _paired(
    first: ItemOutcomes | None, second: ItemOutcomes | None
) -> tuple[ItemOutcomes, ItemOutcomes] | None:
    if first is None or second is None or not _same_items(first, second):
        return None
    return first, second


def _same_items(first: ItemOutcomes, second: ItemOutcomes) -> bool:
    if first.hits.shape != second.hits.shape or (first.clusters is None) != (second.clusters is None):
        return False
    return first.clusters is None or np.array_equal(first.clusters, second.clusters)  # type: ignore[arg-type]


def _halves(group: Sequence[_Component]) -> Interval | None:
    """How far the interval of the group's weighted difference reaches below and above it.

    The group's sets show the same pictures. Where their outcomes are known, an item of one is the item of the same
    place in the others; otherwise the halves are added.
    """
    first, *others = (one.items for one in group)
    if first and all(other and _same_items(other[0], first[0]) for other in others):
        total = sum(abs(one.weight) for one in group)
        ours, theirs = (
            sum(one.weight / total * one.items[side].hits for one in group if one.items) for side in (0, 1)
        )
        own = bounds(group[0].own[0].metric)
        low, high = difference_interval(ours, theirs, first[0].clusters, bounds=own)
        middle = float(np.mean(ours) - np.mean(theirs))
        return max(0.0, total * (middle - low)), max(0.0, total * (high - middle))
    down = up = 0.0
    for one in group:
        half = _half_of_one(one)
        if half is None:
            return None
        down += abs(one.weight) * half[one.weight < 0]
        up += abs(one.weight) * half[one.weight > 0]
    return down, up


def _aligned(group: Sequence[_Component]) -> bool:
    """Whether it is known which items of the group's sets are of the same picture."""
    items = [one.items[0] for one in group if one.items]
    if len(items) < len(group):
        return False
    if all(one.clusters is not None for one in items):
        return True
    return len({len(one.hits) for one in items}) == 1 and all(one.clusters is None for one in items)


def _half_of_one(one: _Component) -> Interval | None:
    middle = one.difference
    if one.items:
        ours, theirs = one.items
        own = bounds(one.own[0].metric)
        low, high = difference_interval(ours.hits, theirs.hits, ours.clusters, bounds=own)
        return max(0.0, middle - low), max(0.0, high - middle)
    first, second = _halves_of_records(one.own), _halves_of_records(one.reference)
    if first is None or second is None:
        return None
    return math.hypot(first[0], second[1]), math.hypot(first[1], second[0])


def _halves_of_records(records: Sequence[Record]) -> Interval | None:
    """How far the mean interval of the draws reaches below and above their mean; None where one has none."""
    known = [(one.value, one.low, one.high) for one in records]
    down = [value - low for value, low, _ in known if value is not None and low is not None]
    up = [high - value for value, _, high in known if value is not None and high is not None]
    if not len(down) == len(up) == len(known):
        return None
    return statistics.fmean(down), statistics.fmean(up)


def _items_p(groups: Sequence[Sequence[_Component]]) -> float:
    """The paired test on the items of all sets; the same pictures of several sets flip their sign together."""
    single = groups[0][0]
    if len(groups) == 1 and len(groups[0]) == 1 and single.items:
        return paired_test(single.items[0].hits, single.items[1].hits, single.items[0].clusters).p
    ours, theirs, clusters, first_free = [], [], [], 0
    for group in groups:
        largest = 0
        for one in group:
            if one.items is None:
                continue
            first, second = one.items
            # the mean over all items is then the weighted sum of the means over each set
            scale = one.weight / len(first.hits)
            ours.append(scale * first.hits)
            theirs.append(scale * second.hits)
            # pictures by their own number: a draw may not have asked about one of them
            index = np.arange(len(first.hits)) if first.clusters is None else first.clusters
            clusters.append(first_free + index)
            largest = max(largest, int(index.max()) + 1)
        first_free += largest
    count = sum(map(len, ours))
    return paired_test(
        count * np.concatenate(ours), count * np.concatenate(theirs), np.concatenate(clusters)
    ).p


def _normal_p(mean: float, half: float) -> float:
    """The two-sided p of a normal whose 95 % interval reaches `half` from `mean` towards 0."""
    if mean == 0:
        return 1.0
    return math.erfc(_Z * abs(mean) / half / math.sqrt(2)) if half > 0 else 0.0
