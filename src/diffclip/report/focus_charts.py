"""Where models look, in charts: how well their relevance finds the object, and what each layer attends to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from diffclip.evaluation.focus_names import is_share
from diffclip.report.bars import bars_panel, whiskers
from diffclip.report.charts import Chart, Key, Panel, percent
from diffclip.report.compare import ENOUGH_SEEDS, Estimate, Measure, estimate, reference_of
from diffclip.report.focus_data import by_layer, comparisons_on, focus_sets, measures_on, stems
from diffclip.report.focus_heads import heads_chart
from diffclip.report.focus_metrics import BY_LAYER, DETECTORS, OF_PAIRS, measure_words
from diffclip.report.metrics import chance_of, level_name, level_text, metric_name, place_of
from diffclip.report.series import Collection, Series
from diffclip.report.style import MARKERS, MUTED, LineStyle, colours_of
from diffclip.report.told import correction_of

_DASHED: LineStyle = (0, (4, 2))


def focus_charts(collection: Collection) -> dict[str, list[Chart]]:
    """The charts that there is data for by kind ("detectors", "layers", "pairs", "heads"), one a set."""
    sets = focus_sets(collection)
    named = list(zip(sets, stems(sets), strict=True))
    makers = {"detectors": _detectors, "layers": _layers, "pairs": _pairs, "heads": heads_chart}
    return {
        kind: [chart for where, stem in named if (chart := make(collection, where, stem)) is not None]
        for kind, make in makers.items()
    }


def _detectors(collection: Collection, where: Measure, stem: str) -> Chart | None:
    known = measures_on(collection, where)
    measures = [one for metric in DETECTORS if (one := where._replace(metric=metric)) in known]
    if not measures:
        return None
    comparisons = [one for one in comparisons_on(collection, where) if one.measure in measures]
    told = (
        f" Beneath a value: the difference to {reference_of(comparisons)}, of shares in points, bold where it is real. "
        f"{correction_of(collection, comparisons)}"
        if comparisons
        else ""
    )
    return Chart(
        name=f"focus_{stem}",
        title=f"Where the models look: {place_of(where)}",
        caption=f"On {place_of(where)}: how well the patches that speak for a text (gradient-weighted attention of "
        f"the last layer) are those of the object that it names. {whiskers(collection, measures)} Dashed: a map that "
        f"is the same everywhere.{told}",
        panels=[bars_panel(collection, one, comparisons) for one in measures],
    )


def _layers(collection: Collection, where: Measure, stem: str) -> Chart | None:
    lines = [
        (_first_upper(metric_name(metric)), [_Line(where._replace(metric=metric), "-")])
        for metric in BY_LAYER
    ]
    caption = (
        f"On {place_of(where)}: relevance of that layer alone; attention is the class token's row, of a differential "
        "layer that of A1 − λ·A2. Mean over heads."
    )
    return _chart(collection, f"focus_layers_{stem}", f"Layer by layer: {place_of(where)}", caption, lines)


def _pairs(collection: Collection, where: Measure, stem: str) -> Chart | None:
    lines = [
        (
            f"{_first_upper(measure_words(f'A1_{name}'))} of A1 and of A2",
            [
                _Line(where._replace(metric=f"A1_{name}"), "-"),
                _Line(where._replace(metric=f"A2_{name}"), _DASHED),
            ],
        )
        for name in OF_PAIRS
    ]
    correlation = where._replace(metric="A1_A2_correlation")
    lines.append((_first_upper(metric_name(correlation.metric)), [_Line(correlation, "-")]))
    caption = (
        f"On {place_of(where)}: the two maps of a differential layer apart, the class token's row, mean over heads: "
        "solid A1, dashed A2. Correlation: near 1 both look at the same patches, and the difference cancels what they "
        "share."
    )
    keys = [Key("A1", MUTED), Key("A2", MUTED, _DASHED)]
    return _chart(collection, f"focus_pairs_{stem}", f"A1 and A2: {place_of(where)}", caption, lines, keys)


@dataclass(frozen=True)
class _Line:
    """One line a model: a headline measure by layer, and how it is drawn."""

    measure: Measure
    style: LineStyle


def _chart(
    collection: Collection,
    name: str,
    title: str,
    caption: str,
    panels: Sequence[tuple[str, list[_Line]]],
    keys: Sequence[Key] = (),
) -> Chart | None:
    """A panel for each entry of `panels` that there are layers for, a line a model."""
    panels = [(head, own) for head, own in panels if any(by_layer(collection, line.measure) for line in own)]
    if not panels:
        return None
    colours = colours_of(collection.series)
    found = [
        series
        for _, own in panels
        for line in own
        for layer in by_layer(collection, line.measure).values()
        for series in layer.items()
    ]
    shown = [series for series in collection.series if any(series == one for one, _ in found)]
    most = max(len(seeds) for _, seeds in found)
    spread = "Shaded: 95 % interval from the sampling of the test set, one training seed a model."
    if most > 1:
        over = (
            f"95 % interval of the mean over {most} seeds" if most >= ENOUGH_SEEDS else "range of two seeds"
        )
        spread = f"Lines: mean over seeds. Points: seeds. Shaded: {over}."
    markers = _markers(collection)
    return Chart(
        name=name,
        title=title,
        caption=f"{caption} {spread} Thin dashes: a map that is the same everywhere.",
        panels=[
            Panel(f"{head}{_level(collection, own[0].measure)}", _draw(collection, own))
            for head, own in panels
        ],
        legend=[*(Key(one.label, colours[one], marker=markers[one]) for one in shown), *keys],
    )


def _level(collection: Collection, measure: Measure) -> str:
    """What a uniform map has, for a title: lines may lie anywhere in the panel."""
    level = chance_of(measure, collection.results)
    return "" if level is None else f" ({level_name(measure)}: {level_text(measure, level)})"


def _draw(collection: Collection, lines: Sequence[_Line]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        metric = lines[0].measure.metric
        level = chance_of(lines[0].measure, collection.results)
        for line in lines:
            for series in collection.series:
                own = {
                    layer: estimate(found[series])
                    for layer, found in by_layer(collection, line.measure).items()
                    if series in found
                }
                if own:
                    _line(axes, collection, series, own, line)
        if level is not None:
            axes.axhline(level, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=2))
        if is_share(metric):
            percent("y", axes)

    return draw


def _line(axes: Axes, collection: Collection, series: Series, own: dict[int, Estimate], line: _Line) -> None:
    colour = colours_of(collection.series)[series]
    layers = list(own)
    means = [one.mean for one in own.values()]
    axes.plot(
        layers,
        means,
        color=colour,
        linestyle=line.style,
        linewidth=1.8,
        marker=_markers(collection)[series],
        markersize=4.5,
    )
    # Student's t knows no bounds
    ends = (0.0, 1.0) if is_share(line.measure.metric) else (-np.inf, np.inf)
    lows = np.clip([np.nan if one.low is None else one.low for one in own.values()], *ends)
    highs = np.clip([np.nan if one.high is None else one.high for one in own.values()], *ends)
    axes.fill_between(layers, lows, highs, color=colour, alpha=0.13, linewidth=0)
    for layer, one in own.items():
        if one.n > 1:
            values = list(one.values.values())
            axes.plot([layer] * one.n, values, color=colour, alpha=0.45, linestyle="", marker=".")


def _markers(collection: Collection) -> dict[Series, str]:
    return {series: MARKERS[index % len(MARKERS)] for index, series in enumerate(collection.series)}


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]
