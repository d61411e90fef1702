"""The paper's Figures 1 and 5: six tasks, each the average over its sets, a bar a model."""

from __future__ import annotations

from collections.abc import Callable

from diffclip.evaluation.averages import AVERAGE, PANELS, SIX_TASKS
from diffclip.report.charts import Chart, Panel
from diffclip.report.compare import Measure, by_series, measure_of
from diffclip.report.grouped import Group, draw_groups, legend_of, reading, shown_in
from diffclip.report.kept import kept
from diffclip.report.metrics import worth_averaging
from diffclip.report.series import Collection
from diffclip.report.sets import set_name, sets_of, widest
from diffclip.report.told import comparisons_of

_WIDTH, _HEIGHT = 3.4, 2.5


# every figure and table asks
@kept
def six_task_measures(collection: Collection) -> dict[str, Measure]:
    """The measure of each panel that there are results for; where models have other sets, the commonest."""
    chosen = {}
    for panel in PANELS:
        found = widest(collection, _is(panel))
        if found:
            chosen[panel] = found[0]
    return chosen


@kept
def is_broad(collection: Collection) -> bool:
    """Whether the averages over six tasks say more briefly what the sets say one by one."""
    return worth_averaging([measure_of(one) for one in collection.results if one.record.value is not None])


def six_tasks_chart(collection: Collection) -> Chart | None:
    """A panel a task; None where that would be no more than each set by itself."""
    if not is_broad(collection):
        return None
    measures = six_task_measures(collection)
    comparisons = comparisons_of(collection, list(measures.values()))
    groups = {name: Group(_beneath(measure), measure) for name, measure in measures.items()}
    shown = shown_in(collection, list(groups.values()))
    missing = _missing(collection, measures)
    return Chart(
        name="six_tasks",
        title=six_tasks_title(measures),
        caption=f"{reading(collection, list(groups.values()), comparisons)}{missing}",
        panels=[
            Panel(
                panel_name(name, measures[name]),
                draw_groups(collection, [group], comparisons, shown, _WIDTH),
                height=_HEIGHT,
                width=_WIDTH,
            )
            for name, group in groups.items()
        ],
        legend=legend_of(collection, list(groups.values())),
        columns=3,
    )


def six_tasks_title(measures: dict[str, Measure]) -> str:
    """ "Six tasks" where all six are there."""
    return "Six tasks" if len(measures) == len(PANELS) else "Tasks"


def panel_name(name: str, measure: Measure) -> str:
    """A panel's title: "Zero-shot ImageNet" where the zero-shot panel is of that set alone."""
    sets = [set_name(dataset) for dataset, _ in sets_of(measure)]
    subject = f" {sets[0]}" if name == "zero-shot" and len(sets) == 1 else ""
    return f"{name[0].upper()}{name[1:]}{subject}"


def _is(panel: str) -> Callable[[Measure], bool]:
    return lambda measure: (measure.task, measure.dataset, measure.metric) == (SIX_TASKS, panel, AVERAGE)


def _beneath(measure: Measure) -> str:
    sets = sets_of(measure)
    return f"mean of {len(sets)} sets" if len(sets) != 1 else f"{set_name(sets[0][0])}, {sets[0][1]} split"


def _missing(collection: Collection, measures: dict[str, Measure]) -> str:
    """Which models a panel leaves out because they were measured on other sets."""
    parts = []
    for name, measure in measures.items():
        kept = by_series(collection.results, measure)
        own = {one.series for one in collection.results if _is(name)(measure_of(one))}
        out = [series.label for series in collection.series if series in own and series not in kept]
        if out:
            parts.append(f"{', '.join(out)} in {name}")
    return f" Left out, being measured on other sets: {'; '.join(parts)}." if parts else ""
