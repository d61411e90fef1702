"""Results over training: what was measured on one checkpoint after the other."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes

from diffclip.report.charts import Chart, Key, Panel, percent, thousands
from diffclip.report.compare import Measure, measure_of
from diffclip.report.metrics import chance_of, headline_measures, metric_name
from diffclip.report.series import Collection, Measured, Result, Series
from diffclip.report.style import MUTED, colours_of

_PANELS = 12


def course_chart(collection: Collection) -> Chart | None:
    """A panel for each headline measure, a line a training; None where no training was followed."""
    results = [result for _, result in collection.course]
    measures = headline_measures(list(dict.fromkeys(map(measure_of, results))))[:_PANELS]
    if not measures:
        return None
    colours = colours_of(collection.series)
    shown = [series for series in collection.series if any(one.series == series for one in results)]
    return Chart(
        name="checkpoints",
        title="Results over training",
        caption="Of each checkpoint that was measured, with its 95 % interval from the sampling of the test set. "
        "Dashed: chance. The tables and comparisons are about the last one.",
        panels=[_panel(collection, measure) for measure in measures],
        legend=[Key(series.label, colours[series], marker="o") for series in shown],
    )


def _panel(collection: Collection, measure: Measure) -> Panel:
    return Panel(
        f"{measure.dataset} {measure.split}: {metric_name(measure.metric)}", _draw(collection, measure)
    )


def _draw(collection: Collection, measure: Measure) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        colours = colours_of(collection.series)
        lines: dict[tuple[Series, int | None], dict[int, list[Result]]] = {}
        for step, result in collection.course:
            if measure_of(result) == measure and result.record.value is not None:
                lines.setdefault((result.series, result.seed), {}).setdefault(step, []).append(result)
        for (series, _), found in lines.items():
            colour = colours[series]
            steps = list(found)
            points = [Measured.of(draws) for draws in found.values()]
            axes.plot(steps, [one.value for one in points], "o-", color=colour, markersize=3.5)
            lows = [one.value if one.low is None else one.low for one in points]
            highs = [one.value if one.high is None else one.high for one in points]
            axes.fill_between(steps, lows, highs, color=colour, alpha=0.12, linewidth=0)
        chance = chance_of(measure, [result for _, result in collection.course])
        if chance is not None:
            axes.axhline(chance, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("step")
        thousands(axes)
        percent("y", axes)

    return draw
