"""Upright bars in groups, one bar a model, with the difference to CLIP above each bar."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from diffclip.report.charts import Key, percent
from diffclip.report.compare import ENOUGH_SEEDS, Comparison, Measure, by_series, estimate, reference_of
from diffclip.report.metrics import signed
from diffclip.report.series import Collection, Series
from diffclip.report.style import INK, MUTED, colours_of
from diffclip.report.told import correction_of

_ROOM_FOR_VALUES = 2.6  # bars an inch; where they are closer, only differences are written
_ROOM_FOR_TEXT = 3.2  # closer still, and they are written upwards


@dataclass(frozen=True)
class Group:
    """A group of bars: what is written beneath it, and the measure that its bars show."""

    label: str
    measure: Measure


def shown_in(collection: Collection, groups: Sequence[Group]) -> list[Series]:
    """The models that have a bar in any of `groups`."""
    found = [by_series(collection.results, group.measure) for group in groups]
    return [series for series in collection.series if any(series in own for own in found)]


def draw_groups(
    collection: Collection,
    groups: Sequence[Group],
    comparisons: Sequence[Comparison],
    shown: Sequence[Series],
    width: float,
) -> Callable[[Axes], None]:
    """Fills axes of about `width` inches with the groups, a place for each model of `shown` in each.

    A difference is set in bold where it is real by the report's own test, and pale where it is not.
    """
    told = {(one.measure, one.series): one for one in comparisons}
    found = {group: by_series(collection.results, group.measure) for group in groups}
    letters = max(9, int(11 * (width - 0.6) / len(groups)))
    density = len(groups) * (len(shown) + 0.5) / (width - 0.6)

    def draw(axes: Axes) -> None:
        colours = colours_of(collection.series)
        bar = min(0.4, 0.8 / max(1, len(shown)))
        top = 0.0
        for x, group in enumerate(groups):
            for index, series in enumerate(shown):
                place = x + (index - (len(shown) - 1) / 2) * bar
                if series not in found[group]:
                    axes.text(place, 0, "–", ha="center", va="bottom", color=MUTED)
                    continue
                mean = estimate(found[group][series])
                axes.bar(place, mean.mean, width=0.88 * bar, color=colours[series], alpha=0.85)
                end = max([mean.mean, mean.high or 0.0, *mean.values.values()])
                if mean.low is not None and mean.high is not None:
                    axes.plot([place, place], [mean.low, mean.high], color=INK, linewidth=1.2)
                if mean.n > 1:
                    axes.plot(
                        [place] * mean.n,
                        list(mean.values.values()),
                        "o",
                        markersize=3.4,
                        color="white",
                        markeredgecolor=INK,
                        markeredgewidth=0.8,
                    )
                _write(axes, place, end, mean.mean, told.get((group.measure, series)), density)
                top = max(top, end)
        axes.set_xticks(range(len(groups)), [_wrapped(group.label, letters) for group in groups])
        axes.set_xlim(-0.55, len(groups) - 0.45)
        ceiling = 1.3 * (top or 1.0)
        axes.set_ylim(0, ceiling)
        axes.grid(False, axis="x")
        axes.tick_params(axis="x", length=0, labelcolor=INK, labelsize=8.5)
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 1])
        axes.set_ylim(0, ceiling)
        percent("y", axes)

    return draw


def legend_of(collection: Collection, groups: Sequence[Group]) -> list[Key]:
    """An entry for each model that has a bar in `groups`."""
    own = [by_series(collection.results, group.measure) for group in groups]
    colours = colours_of(collection.series)
    return [
        Key(series.label, colours[series])
        for series in collection.series
        if any(series in one for one in own)
    ]


def reading(collection: Collection, groups: Sequence[Group], comparisons: Sequence[Comparison]) -> str:
    """How the bars are to be read, for a caption."""
    shown = [seeds for group in groups for seeds in by_series(collection.results, group.measure).values()]
    sizes = {len(seeds) for seeds in shown}
    whiskers = "95 % interval from the sampling of the test sets, one training seed a model"
    if max(sizes, default=1) >= ENOUGH_SEEDS:
        whiskers = "95 % interval of the mean over training seeds"
    elif max(sizes, default=1) == 2:
        whiskers = "the range of two training seeds"
    points = " Points: seeds." if max(sizes, default=1) > 1 else ""
    above = (
        f" Above a bar: its difference to {reference_of(comparisons)} in points, bold where it is real, pale where it "
        f"cannot be told from luck. {correction_of(collection, comparisons)}"
        if comparisons
        else ""
    )
    bare = all(estimate(seeds).low is None for seeds in shown)
    return f"{'' if bare else f'Whiskers: {whiskers}.'}{points}{above}".strip()


def _write(
    axes: Axes, x: float, y: float, value: float, comparison: Comparison | None, density: float
) -> None:
    """The value, where there is room, and the difference above the end of a bar."""
    upwards = density > _ROOM_FOR_TEXT
    base: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "bottom"}
    lift = 3.0
    if density <= _ROOM_FOR_VALUES:
        axes.annotate(f"{100 * value:.1f}", (x, y), xytext=(0, lift), fontsize=8.5, **base)
        lift += 10.5
    if comparison is not None:
        real = comparison.outcome != "unclear"
        axes.annotate(
            signed(comparison.difference.mean),
            (x, y),
            xytext=(0, lift),
            fontsize=7.5 if upwards else 8.5,
            rotation=90 if upwards else 0,
            weight="bold" if real else "normal",
            color=INK if real else MUTED,
            **base,
        )


def _wrapped(label: str, letters: int) -> str:
    return textwrap.fill(label, letters)
