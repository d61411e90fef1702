"""The correlation of A1 with A2 over training: how much of what a differential layer sees both its maps see."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

from diffclip.report.charts import Chart, Key, Panel, thousands
from diffclip.report.lambdas import TOWER_NAMES, depth_colours
from diffclip.report.runs import Run
from diffclip.report.series import Collection, Series
from diffclip.report.style import GRID
from diffclip.report.telemetry_file import TOWERS, Array

_Curve = tuple[Array, Array]
"""Samples seen [V], and the correlation at each of these validations [V, layers]."""


def correlation_chart(collection: Collection) -> Chart | None:
    """A panel for each model and tower, a line a layer, seeds averaged; None where no validation tells of any."""
    panels, deepest = [], 0
    for series in collection.series:
        for tower in TOWERS:
            curves = _curves(collection, series, tower)
            if curves:
                deepest = max(deepest, curves[0][1].shape[1])
                title = f"{series.label}: A1 with A2, {TOWER_NAMES[tower]}"
                panels.append(Panel(title, _draw(curves), height=2.6))
    if not panels:
        return None
    depth = depth_colours(deepest)
    return Chart(
        name="correlation_training",
        title="Correlation of A1 with A2 over training",
        caption="Pearson's correlation of the two maps of a layer on the first pictures of the validation split, mean "
        "over heads: in the vision tower of the class token's row over the patches, in the text tower of the row of "
        "the caption's end over its tokens. Near 1 both look at the same places, and the difference cancels what they "
        "share. A line a layer, from the first (dark) to the last (bright); several seeds are averaged.",
        panels=panels,
        legend=[Key("layer 1", depth[0]), Key(f"layer {deepest}", depth[-1])],
    )


def _curves(collection: Collection, series: Series, tower: str) -> list[_Curve]:
    """Those of the runs of a series, with as many layers as the first one's."""
    found = [_curve(run, tower) for owner, run in collection.runs if owner == series]
    known = [curve for curve in found if curve is not None]
    return [curve for curve in known if curve[1].shape[1] == known[0][1].shape[1]]


def _curve(run: Run, tower: str) -> _Curve | None:
    told = [
        (row.get("samples", row["step"]), own[tower])
        for row, own in zip(run.validation, run.map_correlations, strict=True)
        if tower in own
    ]
    told = [(samples, layers) for samples, layers in told if len(layers) == len(told[-1][1])]
    if not told:
        return None
    return np.array([samples for samples, _ in told]), np.array([layers for _, layers in told])


def _draw(curves: Sequence[_Curve]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        x = min((x for x, _ in curves), key=lambda x: float(x[-1]))
        values: Array = np.mean(
            [[np.interp(x, own, layer) for layer in layers.T] for own, layers in curves], axis=0
        )
        axes.axhline(0, color=GRID, linewidth=1.6)
        for layer, colour in zip(values, depth_colours(len(values)), strict=True):
            axes.plot(x, layer, color=colour, linewidth=1.5, marker="o", markersize=2.5)
        axes.set_ylim(min(-0.05, float(values.min()) - 0.05), 1.03)
        axes.set_xlabel("samples seen")
        axes.set_ylabel("correlation")
        thousands(axes)

    return draw
