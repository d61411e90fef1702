"""λ of the differential layers: by layer at the end of training, and on its way there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.ticker import MaxNLocator

from diffclip.config import VARIANTS, lambda_init_of_layer
from diffclip.report.charts import Chart, Key, Panel, thousands
from diffclip.report.curves import samples_of, thinned
from diffclip.report.runs import Run
from diffclip.report.series import Collection, Series
from diffclip.report.style import MARKERS, MUTED, colours_of
from diffclip.report.telemetry_file import TOWERS, Array

TOWER_NAMES = {"visual": "vision tower", "text": "text tower"}


def lambda_chart(collection: Collection) -> Chart | None:
    """λ of each layer after the last step, one panel a tower; None where no model has one."""
    towers = [tower for tower in TOWERS if _with_lambda(collection, tower)]
    if not towers:
        return None
    colours = colours_of(collection.series)
    markers = {series: MARKERS[index % len(MARKERS)] for index, series in enumerate(collection.series)}
    several = any(len(runs) > 1 for tower in towers for runs in _with_lambda(collection, tower).values())
    drawn = dict.fromkeys(series for tower in towers for series in _with_lambda(collection, tower))

    def panel(tower: str) -> Panel:
        def draw(axes: Axes) -> None:
            for series, runs in _with_lambda(collection, tower).items():
                ends = np.stack([run.last_lambdas[tower] for run in runs])
                layers = np.arange(1, ends.shape[1] + 1)
                if len(runs) > 1:
                    for end in ends:
                        axes.plot(layers, end, color=colours[series], alpha=0.45, linestyle="", marker=".")
                start = _lambda_init(series, runs[0], len(layers))
                if start is not None:
                    axes.plot(layers, start, color=colours[series], linestyle=(0, (2, 2)), linewidth=1)
                axes.plot(
                    layers,
                    ends.mean(0),
                    color=colours[series],
                    marker=markers[series],
                    linewidth=1.8,
                    markersize=5,
                )
            axes.set_xlabel("layer")
            axes.set_ylabel("λ")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=2))

        return Panel(f"λ by layer, {TOWER_NAMES[tower]}", draw)

    return Chart(
        name="lambda",
        title="λ by layer",
        caption="After the last step; dotted: λ_init." + several * " Points: seeds, line: their mean.",
        panels=[panel(tower) for tower in towers],
        legend=[
            *(Key(series.label, colours[series], marker=markers[series]) for series in drawn),
            Key("λ_init", MUTED, (0, (2, 2))),
        ],
    )


def lambda_training_chart(collection: Collection) -> Chart | None:
    """λ over training, a panel for each model and tower, a line a layer; seeds are averaged."""
    panels, deepest = [], 0
    for series in collection.series:
        for tower in TOWERS:
            runs = _with_lambda(collection, tower).get(series)
            if runs:
                deepest = max(deepest, runs[0].lambdas[tower].shape[1])
                panels.append(
                    Panel(f"{series.label}: λ, {TOWER_NAMES[tower]}", _over_training(runs, tower), height=2.6)
                )
    if not panels:
        return None
    depth = depth_colours(deepest)
    return Chart(
        name="lambda_training",
        title="λ over training",
        caption="A line a layer, from the first (dark) to the last (bright); several seeds are averaged.",
        panels=panels,
        legend=[Key("layer 1", depth[0]), Key(f"layer {deepest}", depth[-1])],
    )


def depth_colours(layers: int) -> list[str]:
    """A colour a layer, from the first (dark) to the last (bright)."""
    # viridis without its ends, of which one is lost on white and the other on a dark page
    return [to_hex(colour) for colour in colormaps["viridis"](np.linspace(0.22, 0.85, layers))]


def _with_lambda(collection: Collection, tower: str) -> dict[Series, list[Run]]:
    """The runs of each series with a λ in `tower`, those with as many layers as the first one."""
    found: dict[Series, list[Run]] = {}
    for series, run in collection.runs:
        layers = run.lambdas[tower].shape[1]
        if layers and layers == found.get(series, [run])[0].lambdas[tower].shape[1]:
            found.setdefault(series, []).append(run)
    return found


def _over_training(runs: Sequence[Run], tower: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        shortest = min(runs, key=lambda run: samples_of(run)[-1])
        x = thinned(samples_of(shortest))[0]
        values: Array = np.mean(
            [[np.interp(x, samples_of(run), layer) for layer in run.lambdas[tower].T] for run in runs],
            axis=0,
        )
        for layer, colour in zip(values, depth_colours(len(values)), strict=True):
            axes.plot(x, layer, color=colour, linewidth=1.5)
        axes.set_xlabel("samples seen")
        axes.set_ylabel("λ")
        thousands(axes)

    return draw


def _lambda_init(series: Series, run: Run, layers: int) -> list[float] | None:
    """λ_init of each layer, of the run's configuration or else of the variant; None where λ does not start there."""
    if run.config is not None:
        if run.config.differential.lambda_fixed is not None:
            return None
        return [lambda_init_of_layer(run.config.lambda_init, layer) for layer in range(layers)]
    if series.variant not in VARIANTS:
        return None
    return [lambda_init_of_layer(VARIANTS[series.variant][2], layer) for layer in range(layers)]
