"""Where models look, in numbers: what is told first, what is folded, and every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diffclip.evaluation.focus_names import detail
from diffclip.report.compare import Measure
from diffclip.report.focus_data import by_layer, focus_sets, layer_comparisons, measures_on, shown_on
from diffclip.report.focus_metrics import LAYERED, MAPS, OF_BOTH
from diffclip.report.metrics import dataset_name, metric_name
from diffclip.report.series import Collection
from diffclip.report.tables import Table, table_of, table_of_results
from diffclip.report.told import comparisons_of, correction_of


def focus_tables(collection: Collection, every_seed: bool = True) -> list[Table]:
    """A table a set of the measures that say most."""
    shown = [shown_on(collection, where) for where in focus_sets(collection)]
    return [table_of_results(collection, measures, every_seed) for measures in shown if measures]


def folded_tables(collection: Collection, every_seed: bool = True) -> list[Table]:
    """All that those leave out, under each set a table a map and then a table a measure with every layer; what they
    say of protocol and intervals holds here as well."""
    tables = []
    for where in focus_sets(collection):
        shown = shown_on(collection, where)
        for kind, own in _by_map([one for one in measures_on(collection, where) if one not in shown]).items():
            table = table_of_results(collection, own, every_seed)
            tested = correction_of(collection, comparisons_of(collection, own))
            tables.append(replace(table, title=f"{table.title}: {kind}", notes=[tested] if tested else []))
        layered = [where._replace(metric=metric) for metric in LAYERED]
        tables += [_layers(collection, one, every_seed) for one in layered if by_layer(collection, one)]
    return tables


def _by_map(measures: Sequence[Measure]) -> dict[str, list[Measure]]:
    """Measures by the map that they are of, those of both A1 and A2 together."""
    groups: dict[str, list[Measure]] = {kind: [] for kind in (*MAPS, "A1 and A2")}
    for one in measures:
        kind = "A1 and A2" if one.metric in OF_BOTH else one.metric.partition("_")[0]
        groups.setdefault(kind, []).append(one)
    return {kind: own for kind, own in groups.items() if own}


def _layers(collection: Collection, measure: Measure, every_seed: bool) -> Table:
    layers = by_layer(collection, measure)
    comparisons = [one for own in layer_comparisons(collection, measure).values() for one in own]
    found = {
        measure._replace(metric=detail(measure.metric, layer)): series for layer, series in layers.items()
    }
    name = metric_name(measure.metric)
    title = f"{name[0].upper()}{name[1:]}, by layer: {dataset_name(measure.dataset)}, {measure.split} split"
    heads = [f"layer {layer}" for layer in layers]
    table = table_of(collection, found, comparisons, title, heads, every_seed)
    tested = correction_of(collection, comparisons)
    return replace(table, notes=[tested] if tested else [])
