"""The numbers of the task `focus` in the order that charts and tables have them: by set, by layer, by head."""

from __future__ import annotations

import re
from collections.abc import Sequence

from diffclip.evaluation.focus_names import detail, headline
from diffclip.report.compare import Comparison, Measure, compare_in, corrected, measure_of
from diffclip.report.focus_metrics import FOCUS, SHOWN
from diffclip.report.kept import kept
from diffclip.report.series import Collection, Measured, Result, Series
from diffclip.report.sheet import stem_of
from diffclip.report.told import comparisons_of

_PLACE = re.compile(r"/layer (\d+)(?: head (\d+))?")

Layers = dict[int, dict[Series, dict[int | None, Measured]]]
"""By layer, counted from 1: each series by training seed."""
_Details = dict[tuple[Measure, int | None], Layers]


def focus_sets(collection: Collection) -> list[Measure]:
    """What was looked at and how: the set, split and protocol of each group of numbers, without a metric."""
    own = [one for one in collection.results if one.record.task == FOCUS and one.record.value is not None]
    return list(dict.fromkeys(measure_of(one)._replace(metric="") for one in own))


def stems(sets: Sequence[Measure]) -> list[str]:
    """A part of a file's name for each of `focus_sets`."""
    names = [stem_of(one.dataset) for one in sets]
    return [
        name if names.count(name) == 1 else f"{name}_{names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]


def measures_on(collection: Collection, where: Measure) -> list[Measure]:
    """The headline measures on one of `focus_sets`."""
    found = dict.fromkeys(measure_of(one) for one in collection.results if one.record.value is not None)
    return [one for one in found if one._replace(metric="") == where]


def shown_on(collection: Collection, where: Measure) -> list[Measure]:
    """Those of them that are not folded, in their order."""
    found = measures_on(collection, where)
    return [where._replace(metric=one) for one in SHOWN if where._replace(metric=one) in found]


def comparisons_on(collection: Collection, where: Measure) -> list[Comparison]:
    """The comparisons in what is not folded, corrected for one another."""
    return comparisons_of(collection, shown_on(collection, where))


def by_layer(collection: Collection, measure: Measure) -> Layers:
    """The results of each layer in a headline measure."""
    return _details(collection).get((measure, None), {})


def by_head(collection: Collection, measure: Measure) -> dict[int, Layers]:
    """The results of each head, counted from 1, in a headline measure."""
    heads = sorted(head for one, head in _details(collection) if one == measure and head is not None)
    return {head: _details(collection)[measure, head] for head in heads}


# paired tests on the items of every layer take a while
@kept
def layer_comparisons(collection: Collection, measure: Measure) -> dict[int, list[Comparison]]:
    """Every series against its CLIP in each layer, corrected for the number of all of them."""
    found = {
        layer: compare_in(measure._replace(metric=detail(measure.metric, layer)), series, collection)
        for layer, series in by_layer(collection, measure).items()
    }
    told = iter(corrected(one for own in found.values() for one in own))
    return {layer: [next(told) for _ in own] for layer, own in found.items()}


# every chart and table asks
@kept
def _details(collection: Collection) -> _Details:
    """By headline measure and head (None: the whole layer)."""
    found: dict[tuple[Measure, int | None], dict[int, dict[Series, dict[int | None, list[Result]]]]] = {}
    for one in collection.details:
        place = _PLACE.search(one.record.metric)
        if place is None or one.record.value is None:
            continue
        measure = measure_of(one)
        key = measure._replace(metric=headline(measure.metric)), int(place[2]) if place[2] else None
        layers = found.setdefault(key, {}).setdefault(int(place[1]), {})
        layers.setdefault(one.series, {}).setdefault(one.seed, []).append(one)
    return {
        key: {
            layer: {
                series: {seed: Measured.of(own) for seed, own in seeds.items()}
                for series, seeds in layers[layer].items()
            }
            for layer in sorted(layers)
        }
        for key, layers in found.items()
    }
