"""Where each head looks: a heat map a model, layers across and heads down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.ticker import FuncFormatter

from diffclip.evaluation.focus_names import is_share
from diffclip.report.charts import Chart, Panel
from diffclip.report.compare import Measure
from diffclip.report.focus_data import by_head
from diffclip.report.focus_metrics import BY_HEAD, plain
from diffclip.report.metrics import chance_of, level_text, metric_name, place_of
from diffclip.report.series import Collection, Series
from diffclip.report.telemetry_file import Array

_ROOM = 12  # layers whose numbers stand beside one another
_CELLS = 72  # in which values can be written


def heads_chart(collection: Collection, where: Measure, stem: str) -> Chart | None:
    """A panel a model, all on one scale; None where heads were not looked at one by one."""
    found = [one for metric in BY_HEAD if by_head(collection, one := where._replace(metric=metric))]
    if not found:
        return None
    measure = found[0]
    grids = {
        series: grid
        for series in collection.series
        if (grid := _grid(collection, measure, series)) is not None
    }
    centre = chance_of(measure, collection.results) or 0.0
    values = np.concatenate([grid.ravel() for _, grid in grids.values()])
    reach = float(np.nanmax(np.abs(values - centre))) or 1.0
    norm = TwoSlopeNorm(centre, centre - reach, centre + reach)
    seeds = [seed for seed, _ in grids.values()]
    several = any(
        len(own) > 1
        for layers in by_head(collection, measure).values()
        for series in layers.values()
        for own in series.values()
    )
    written = max(grid.size for _, grid in grids.values()) <= _CELLS
    which = ", ".join(dict.fromkeys(f"seed {seed}" for seed in seeds))
    return Chart(
        name=f"focus_heads_{stem}",
        title=f"Head by head: {place_of(where)}",
        caption=f"On {place_of(where)}: {metric_name(measure.metric)}, of each head alone; a differential layer has "
        "half as many, each of a pair of maps. Red: more than a map that is the same everywhere "
        f"({level_text(measure, centre)}), blue: less; one scale for all."
        + f" Of {which}: heads of two trainings do not correspond."
        * several,
        panels=[
            Panel(series.label, _draw(grid, norm, measure.metric, written), height=1.3 + 0.24 * grid.shape[0])
            for series, (_, grid) in grids.items()
        ],
        dense=max(grid.shape[1] for _, grid in grids.values()) > _ROOM,
    )


def _grid(collection: Collection, measure: Measure, series: Series) -> tuple[int | None, Array] | None:
    """The first seed of a model and its values [heads, layers], NaN where there is none; None without any."""
    heads = by_head(collection, measure)
    found = {
        (head, layer): seeds[series]
        for head, layers in heads.items()
        for layer, seeds in layers.items()
        if series in seeds
    }
    if not found:
        return None
    seed = min(
        (seed for seeds in found.values() for seed in seeds), key=lambda one: -1 if one is None else one
    )
    grid = np.full((max(head for head, _ in found), max(layer for _, layer in found)), np.nan)
    for (head, layer), seeds in found.items():
        if seed in seeds:
            grid[head - 1, layer - 1] = seeds[seed].value
    return seed, grid


def _draw(grid: Array, norm: TwoSlopeNorm, metric: str, written: bool) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        heads, layers = grid.shape
        mesh = axes.pcolormesh(
            np.arange(layers + 1) + 0.5, np.arange(heads + 1) + 0.5, grid, cmap="RdBu_r", norm=norm
        )
        axes.set_xticks(
            range(1, layers + 1),
            [str(one) if layers <= _ROOM or one % 2 else "" for one in range(1, layers + 1)],
        )
        axes.set_yticks(
            range(1, heads + 1), [str(one) if heads <= 8 or one % 2 else "" for one in range(1, heads + 1)]
        )
        axes.set_ylim(heads + 0.5, 0.5)
        axes.grid(False)
        axes.tick_params(length=0)
        axes.set_xlabel("layer")
        axes.set_ylabel("head")
        for spine in axes.spines.values():
            spine.set_visible(False)
        bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=12)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, labelsize=8.5)
        unit = " %" * is_share(metric)
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{plain(value, metric)}{unit}"))
        if written:
            for (head, layer), value in np.ndenumerate(grid):
                if np.isfinite(value):
                    far = abs(float(norm(value)) - 0.5) > 0.3
                    axes.text(
                        layer + 1,
                        head + 1,
                        plain(float(value), metric),
                        ha="center",
                        va="center",
                        fontsize=7.5,
                        color="white" if far else "black",
                    )

    return draw
