"""Bars: the headline metrics of every model with intervals, seeds and chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from diffclip.evaluation.focus_names import is_share
from diffclip.report.charts import Chart, Panel, percent
from diffclip.report.compare import ENOUGH_SEEDS, Comparison, Measure, by_series, estimate, measure_of
from diffclip.report.focus_metrics import FOCUS, plain
from diffclip.report.metrics import (
    amount,
    chance_of,
    headline_measures,
    level_name,
    level_text,
    measure_name,
    p_text,
    place_of,
)
from diffclip.report.series import Collection
from diffclip.report.style import INK, MUTED, colours_of


def metric_chart(collection: Collection) -> Chart | None:
    """A panel for each headline measure, a bar a model; None where there are no results. Where models look is shown
    by `focus_charts`."""
    found = dict.fromkeys(
        measure_of(one)
        for one in collection.results
        if one.record.value is not None and one.record.task != FOCUS
    )
    measures = headline_measures(list(found))
    if not measures:
        return None
    dashed = any(chance_of(measure, collection.results) is not None for measure in measures)
    return Chart(
        name="metrics",
        title="Results",
        caption=f"{whiskers(collection, measures)}{' Dashed: chance.' if dashed else ''}",
        panels=[bars_panel(collection, measure) for measure in measures],
    )


def whiskers(collection: Collection, measures: Sequence[Measure]) -> str:
    """What the bars, points and whiskers of these measures are, for a caption."""
    several = any(
        len(seeds) > 1 for measure in measures for seeds in by_series(collection.results, measure).values()
    )
    return (
        "Bars: mean over seeds. Points: seeds. "
        f"Whiskers: 95 % interval of the mean from {ENOUGH_SEEDS} seeds on, "
        "the range for two, sampling of the test set for one."
        if several
        else "Whiskers: 95 % interval from the sampling of the test set; one training seed a model."
    )


def bars_panel(collection: Collection, measure: Measure, comparisons: Sequence[Comparison] = ()) -> Panel:
    """The models' bars in one measure, beside each its value and, as far as `comparisons` hold it, the tested
    difference to CLIP."""
    found = by_series(collection.results, measure)
    rows = [series for series in collection.series if series in found]
    return Panel(
        f"{place_of(measure) or 'mean over sets'}: {measure_name(measure)}",
        _draw(collection, measure, comparisons),
        height=1.05 + 0.42 * len(rows),
    )


def _draw(
    collection: Collection, measure: Measure, comparisons: Sequence[Comparison]
) -> Callable[[Axes], None]:
    told = {one.series: one for one in comparisons if one.measure == measure}

    def draw(axes: Axes) -> None:
        found = by_series(collection.results, measure)
        colours = colours_of(collection.series)
        rows = [series for series in collection.series if series in found]
        chance = chance_of(measure, collection.results)
        right_end = chance or 0.0
        for y, series in enumerate(rows):
            mean = estimate(found[series])
            axes.barh(y, mean.mean, height=0.62, color=colours[series], alpha=0.85)
            end = max([mean.mean, mean.high or 0.0, *mean.values.values()])
            if mean.low is not None and mean.high is not None:
                axes.plot([mean.low, mean.high], [y, y], color=INK, linewidth=1.3)
            if mean.n > 1:
                axes.plot(
                    list(mean.values.values()),
                    [y] * mean.n,
                    "o",
                    markersize=4.5,
                    color="white",
                    markeredgecolor=INK,
                )
            one = told.get(series)
            axes.annotate(
                amount(measure.metric, mean.mean),
                (end, y),
                xytext=(6, 0 if one is None else 5),
                textcoords="offset points",
                va="center",
                fontsize=9.5,
            )
            if one is not None:
                axes.annotate(
                    _difference(one),
                    (end, y),
                    xytext=(6, -6),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                    weight="normal" if one.outcome == "unclear" else "bold",
                    color=MUTED if one.outcome == "unclear" else INK,
                )
            right_end = max(right_end, end)
        if chance is not None:
            axes.axvline(chance, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
            axes.annotate(
                f"{level_name(measure)} {level_text(measure, chance)}",
                (chance, 0),
                xycoords=("data", "axes fraction"),
                xytext=(4, 3),
                textcoords="offset points",
                ha="left",
                va="bottom",
                fontsize=8.5,
                color=MUTED,
            )
        axes.set_yticks(range(len(rows)), [series.label for series in rows])
        axes.set_ylim(len(rows) - 0.15, -0.55)
        end = (right_end or 1.0) * (1.32 if told else 1.18)
        axes.set_xlim(0, end)
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        if is_share(measure.metric):
            axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 1])
            axes.set_xlim(0, end)
            percent("x", axes)

    return draw


def _difference(one: Comparison) -> str:
    text = plain(one.difference.mean, one.measure.metric, sign=True)
    return text if one.shown_p is None else f"{text}, {p_text(one.shown_p)}"
