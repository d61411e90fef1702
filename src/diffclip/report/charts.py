"""A chart is panels that share a legend: side by side in a file, one by one on a page that may be narrow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from diffclip.files import write_atomically
from diffclip.report.style import (
    HEIGHT,
    INK,
    WIDTH,
    LineStyle,
    new_figure,
    png_of,
    style,
    svg_of,
    with_palette,
)


@dataclass(frozen=True)
class Panel:
    """One set of axes: `title` heads it and `draw` fills it; `width` and `height` are inches."""

    title: str
    draw: Callable[[Axes], None]
    height: float = HEIGHT
    width: float = WIDTH

    def figure(self) -> Figure:
        return _figure([self], 1, [])


@dataclass(frozen=True)
class Key:
    """One entry of a legend: a line, or a marker where `marker` is set."""

    label: str
    colour: str = INK
    line: LineStyle = "-"
    marker: str = ""

    def handle(self) -> Line2D:
        return Line2D(
            [],
            [],
            color=self.colour,
            linestyle=self.line,
            marker=self.marker or "None",
            linewidth=2.2,
            label=self.label,
        )


@dataclass(frozen=True)
class Chart:
    """Panels of one kind. `name` is the stem of its files; `caption` says what is to be seen.

    A `dense` one has text too small for a telephone, where its panels scroll sideways instead.
    """

    name: str
    title: str
    caption: str
    panels: list[Panel]
    legend: list[Key] = field(default_factory=list)
    columns: int = 2
    dense: bool = False

    def figure(self) -> Figure:
        """All panels in one figure, the legend above them."""
        return _figure(self.panels, min(self.columns, len(self.panels)), self.legend)


def save_chart(chart: Chart, folder: Path, stem: str | None = None) -> list[Path]:
    """Write the chart as `STEM.png` and `STEM.svg` (its name if None) into `folder`; returns both paths.

    Raises:
        InputError: the folder cannot be written.
    """
    return save_figure(chart.figure(), folder / (stem or chart.name), few_colours=True)


def save_figure(figure: Figure, stem: Path, few_colours: bool = False) -> list[Path]:
    """Write a figure as `STEM.png` and `STEM.svg`, on white: where they are shown is not ours to know.

    With `few_colours`, as lines and bars have, the PNG is a third as large; pictures would show the 256 that are left.
    """
    png = png_of(figure, ground="white")
    contents = {
        ".png": with_palette(png) if few_colours else png,
        ".svg": svg_of(figure, ground="white").encode(),
    }
    paths = []
    for suffix, content in contents.items():
        paths.append(stem.with_name(stem.name + suffix))
        with write_atomically(paths[-1]) as temporary:
            temporary.write_bytes(content)
    return paths


def thousands(axes: Axes) -> None:
    """Write the ticks of the x axis as 500, 20 k or 1.5 M."""

    def short(value: float, _: int) -> str:
        for size, unit in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
            if abs(value) >= size:
                return f"{value / size:g}{unit}"
        return f"{value:g}"

    axes.xaxis.set_major_formatter(FuncFormatter(short))
    axes.xaxis.set_major_locator(MaxNLocator(6))


def percent(axis: str, axes: Axes) -> None:
    """Write the ticks of the "x" or "y" axis, which holds fractions, as percentages."""
    target = axes.xaxis if axis == "x" else axes.yaxis
    target.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))


def _figure(panels: list[Panel], columns: int, legend: list[Key]) -> Figure:
    with style():
        rows = -(-len(panels) // columns)
        heights = [
            max(panel.height for panel in panels[row * columns : (row + 1) * columns]) for row in range(rows)
        ]
        entries = 4 if columns > 1 else 2
        legend_height = 0.34 * -(-len(legend) // entries) if len(legend) > 1 else 0.0
        width = max(panel.width for panel in panels)
        figure = new_figure(width * columns, sum(heights) + legend_height)
        grid = figure.add_gridspec(rows, columns, height_ratios=heights)
        for index, panel in enumerate(panels):
            axes = figure.add_subplot(grid[index // columns, index % columns])
            axes.set_title(panel.title)
            panel.draw(axes)
        if legend_height:
            figure.legend(
                handles=[key.handle() for key in legend],
                loc="outside upper left",
                ncols=min(entries, len(legend)),
                handlelength=2.4,
            )
        return figure
