"""The paper's Figure 4: pairs told apart by pattern (MMVP-VLM), as a radar with counts and the chance level."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle

from diffclip.evaluation.mmvp import CHANCE
from diffclip.report.charts import Chart, Key, Panel
from diffclip.report.compare import Measure, by_series, estimate
from diffclip.report.series import Collection, Series
from diffclip.report.sets import set_name, widest
from diffclip.report.style import GRID, INK, MUTED, SEED_STYLES, colours_of

_TASK, _PAIRS = "mmvp", "pair_accuracy"
_FEWEST = 3  # axes that make an area
_WIDTH, _HEIGHT = 4.6, 4.1


def pair_measures(collection: Collection, dataset: str) -> dict[str, Measure]:
    """The measure of each pattern of a set of pairs, and under "" of all its pairs, as far as there are any."""
    metrics = dict.fromkeys(
        one.record.metric
        for one in collection.results
        if (one.record.task, one.record.dataset) == (_TASK, dataset)
        and one.record.metric.partition("/")[0] == _PAIRS
    )
    found = {metric: widest(collection, _is(dataset, metric)) for metric in metrics}
    return {metric.partition("/")[2]: one[0] for metric, one in found.items() if one}


def pair_sets(collection: Collection) -> list[str]:
    """The sets of pairs that there are results for."""
    return list(dict.fromkeys(one.record.dataset for one in collection.results if one.record.task == _TASK))


def count_of(collection: Collection, measure: Measure, series: Series) -> tuple[float, int] | None:
    """How many pairs a model has right, the mean over seeds, and of how many; None if it was not asked."""
    seeds = by_series(collection.results, measure).get(series)
    if not seeds:
        return None
    pairs = next(iter(seeds.values())).record.count
    return estimate(seeds).mean * pairs, pairs


def count_text(right: float) -> str:
    """A count, or a mean of counts to one decimal."""
    return f"{right:.0f}" if abs(right - round(right)) < 1e-6 else f"{right:.1f}"


def radar_chart(collection: Collection) -> Chart | None:
    """A radar for each set of pairs with at least three patterns; None where there is none."""
    sets = {}
    for dataset in pair_sets(collection):
        measures = {name: one for name, one in pair_measures(collection, dataset).items() if name}
        if len(measures) >= _FEWEST:
            sets[dataset] = measures
    if not sets:
        return None
    shown = [
        series
        for series in collection.series
        if any(count_of(collection, one, series) for measures in sets.values() for one in measures.values())
    ]
    colours = colours_of(collection.series)
    order = (
        f" (in the order of the legend, {', '.join(one.label for one in shown)})" if len(shown) > 1 else ""
    )
    return Chart(
        name="minimal_pairs",
        title="Minimal pairs",
        caption=(
            "Share of pairs of which both statements pick their own picture, by pattern; beneath a pattern "
            f"the number of pairs that are right{order}. Dashed circle: chance, {100 * CHANCE:.0f} %. With so "
            "few pairs a pattern, single axes say little."
        ),
        panels=[
            Panel(
                f"{set_name(dataset)}: pairs told apart",
                _draw(collection, measures, shown),
                height=_HEIGHT,
                width=_WIDTH,
            )
            for dataset, measures in sets.items()
        ],
        legend=[
            Key(series.label, colours[series], SEED_STYLES[index % len(SEED_STYLES)])
            for index, series in enumerate(shown)
        ],
    )


def _is(dataset: str, metric: str) -> Callable[[Measure], bool]:
    return lambda one: (one.task, one.dataset, one.metric) == (_TASK, dataset, metric)


def _draw(
    collection: Collection, measures: dict[str, Measure], shown: list[Series]
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        colours = colours_of(collection.series)
        angles = [math.pi / 2 - 2 * math.pi * index / len(measures) for index in range(len(measures))]
        values = {series: [_share(collection, one, series) for one in measures.values()] for series in shown}
        largest = np.nanmax([[CHANCE], *[[np.nanmax(row)] for row in values.values()]])
        outer = min(1.0, math.ceil(4 * largest + 1e-9) / 4)
        _grid(axes, angles, outer)
        for index, series in enumerate(shown):
            x = [value * math.cos(angle) for value, angle in zip(values[series], angles, strict=True)]
            y = [value * math.sin(angle) for value, angle in zip(values[series], angles, strict=True)]
            line = SEED_STYLES[index % len(SEED_STYLES)]
            axes.fill(x, y, color=colours[series], alpha=0.1)
            axes.plot([*x, x[0]], [*y, y[0]], color=colours[series], linestyle=line, linewidth=1.9)
            axes.plot(x, y, "o", color=colours[series], markersize=4)
        for (name, measure), angle in zip(measures.items(), angles, strict=True):
            _label(axes, angle, outer, name, _counts(collection, measure, shown))
        axes.set_xlim(-1.72 * outer, 1.72 * outer)
        reach = 1.36 if len(shown) < 3 else 1.5
        axes.set_ylim(-reach * outer, reach * outer)
        axes.set_aspect("equal")
        axes.set_axis_off()

    return draw


def _share(collection: Collection, measure: Measure, series: Series) -> float:
    found = count_of(collection, measure, series)
    return math.nan if found is None else found[0] / found[1]


def _grid(axes: Axes, angles: list[float], outer: float) -> None:
    for ring in np.arange(0.25, outer + 0.01, 0.25).tolist():
        chance = math.isclose(ring, CHANCE)
        edge = (
            {"edgecolor": INK, "linestyle": (0, (4, 3)), "linewidth": 1.1} if chance else {"edgecolor": GRID}
        )
        axes.add_patch(Circle((0, 0), ring, fill=False, **edge))
        between = (angles[0] + angles[1]) / 2
        place = (ring * math.cos(between), ring * math.sin(between))
        axes.text(*place, f" {100 * ring:.0f} %", fontsize=7.5, color=MUTED, va="bottom")
    for angle in angles:
        axes.plot([0, outer * math.cos(angle)], [0, outer * math.sin(angle)], color=GRID, linewidth=0.8)


def _counts(collection: Collection, measure: Measure, shown: list[Series]) -> str:
    found = [count_of(collection, measure, series) for series in shown]
    pairs = next(one[1] for one in found if one)
    # many counts are set more closely
    dot, of = (" · ", " of") if len(shown) < 3 else ("·", "\nof")
    return f"{dot.join('–' if one is None else count_text(one[0]) for one in found)}{of} {pairs}"


def _label(axes: Axes, angle: float, outer: float, name: str, counts: str) -> None:
    x, y = math.cos(angle), math.sin(angle)
    across = "center" if abs(x) < 0.2 else "left" if x > 0 else "right"
    along = "bottom" if y > 0.7 else "top" if y < -0.7 else "center"
    axes.annotate(
        f"{textwrap.fill(name, 17)}\n{counts}",
        (1.06 * outer * x, 1.06 * outer * y),
        fontsize=8.5,
        color=INK,
        ha=across,
        va=along,
        linespacing=1.15,
    )
