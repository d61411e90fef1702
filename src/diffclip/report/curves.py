"""Curves over training: loss and accuracy in the batch, validation, and the rest of the telemetry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

from diffclip.report.charts import Chart, Key, Panel, percent, thousands
from diffclip.report.compare import ENOUGH_SEEDS
from diffclip.report.metrics import VALIDATION_ORDER, chance_text, metric_name, recall_chance
from diffclip.report.runs import Run
from diffclip.report.series import Collection, Series
from diffclip.report.style import MUTED, SEED_STYLES, LineStyle, colours_of
from diffclip.report.telemetry_file import Array

_POINTS = 300  # of a curve in a figure; more cannot be seen and would bloat the file
_RAW_RUNS = 4  # with more runs the single steps only hide the averages
_TELEMETRY = {
    "logit_scale": "Logit scale",
    "grad_norm": "Gradient norm",
    "lr": "Learning rate",
    "samples_per_second": "Samples a second",
}


def training_chart(collection: Collection) -> Chart:
    """Loss and accuracy within the batch: each step faint, the moving average strong."""
    panels = [Panel("Training loss", _curves(collection, "loss"))]
    if any("accuracy" in run.steps for _, run in collection.runs):
        panels.append(
            Panel("Training accuracy within the batch", _curves(collection, "accuracy", as_percent=True))
        )
    return Chart(
        name="training",
        title="Training",
        caption=f"Moving average over 5 % of the run{_detail(collection)} A sample: a picture and a caption.",
        panels=panels,
        legend=_legend(collection),
    )


def validation_chart(collection: Collection) -> Chart | None:
    """Recall on the validation split of the training data over training; None where no run was validated.

    Chance is drawn where validations say how many `pictures` and `captions` they looked at.
    """
    present = {name for _, run in collection.runs for row in run.validation for name in row}
    metrics = [name for name in VALIDATION_ORDER if name in present]
    if not metrics:
        return None

    def panel(metric: str) -> Panel:
        def draw(axes: Axes) -> None:
            curves: dict[Series, list[tuple[Array, Array]]] = {}
            for (series, run), colour, line in _styled(collection):
                rows = [row for row in run.validation if metric in row]
                if not rows:
                    continue
                x = np.array([row.get("samples", row["step"]) for row in rows])
                y = np.array([row[metric] for row in rows])
                curves.setdefault(series, []).append((x, y))
                if _seeds_of(collection, series) >= ENOUGH_SEEDS:
                    axes.plot(x, y, color=colour, linestyle=line, linewidth=0.9, alpha=0.6)
                else:
                    axes.plot(x, y, color=colour, linestyle=line, marker="o", markersize=3.5)
            _means(axes, collection, curves)
            axes.set_ylim(bottom=0)
            chance = _validation_chance(collection, metric)
            if chance is not None:
                _chance_line(axes, chance)
            percent("y", axes)
            _samples_axis(axes)

        return Panel(f"Validation {metric_name(metric)}", draw)

    return Chart(
        name="validation",
        title="Validation during training",
        caption="On the validation split of the training data, from which the best checkpoint is chosen.",
        panels=[panel(metric) for metric in metrics],
        legend=_legend(collection),
    )


def telemetry_chart(collection: Collection) -> Chart | None:
    """Logit scale, gradient norm, learning rate and speed; None where no run recorded any of them."""
    present = [name for name in _TELEMETRY if any(name in run.steps for _, run in collection.runs)]
    if not present:
        return None
    return Chart(
        name="telemetry",
        title="Telemetry",
        caption=f"Moving average over 5 % of the run{_detail(collection)}",
        panels=[Panel(_TELEMETRY[name], _curves(collection, name), height=2.4) for name in present],
        legend=_legend(collection),
    )


def smooth(values: Array, share: float = 0.05) -> Array:
    """Centred moving average over `share` of `values` [n]; cut off at the ends, NaN left out."""
    half = int(len(values) * share / 2)
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    index = np.arange(len(values))
    start, stop = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    with np.errstate(invalid="ignore"):
        averages: Array = (sums[stop] - sums[start]) / (counts[stop] - counts[start])
    return averages


def samples_of(run: Run) -> Array:
    """The x axis of a run, [T]: samples seen, or steps where samples are unknown."""
    return run.steps.get("samples", run.steps["step"])


def thinned(*arrays: Array) -> tuple[Array, ...]:
    """The same few hundred positions of arrays of equal length, the last one among them."""
    positions = np.unique(
        np.linspace(0, len(arrays[0]) - 1, min(_POINTS, len(arrays[0]))).round().astype(int)
    )
    return tuple(array[positions] for array in arrays)


def extremes(x: Array, y: Array) -> tuple[Array, Array]:
    """A curve of few enough points to draw: where there are more, the least and the greatest of each stretch."""
    if len(y) <= 2 * _POINTS:
        return x, y
    filled = np.where(np.isfinite(y), y, np.nan)
    positions = []
    for stretch in np.array_split(np.arange(len(y)), _POINTS):
        known = stretch[~np.isnan(filled[stretch])]
        if len(known):
            positions += sorted({known[filled[known].argmin()], known[filled[known].argmax()]})
    return x[positions], y[positions]


def _curves(collection: Collection, name: str, as_percent: bool = False) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        curves: dict[Series, list[tuple[Array, Array]]] = {}
        for (series, run), colour, line in _styled(collection):
            if name not in run.steps:
                continue
            x, strong = thinned(samples_of(run), smooth(run.steps[name]))
            if len(collection.runs) <= _RAW_RUNS:
                axes.plot(
                    *extremes(samples_of(run), run.steps[name]), color=colour, alpha=0.16, linewidth=0.7
                )
            curves.setdefault(series, []).append((x, strong))
            several = _seeds_of(collection, series) >= ENOUGH_SEEDS
            axes.plot(
                x,
                strong,
                color=colour,
                linestyle=line,
                linewidth=0.9 if several else 1.8,
                alpha=0.6 if several else 1,
            )
        _means(axes, collection, curves)
        _limit(axes, [strong for own in curves.values() for _, strong in own])
        if as_percent:
            percent("y", axes)
        _samples_axis(axes)

    return draw


def _seeds_of(collection: Collection, series: Series) -> int:
    return sum(owner == series for owner, _ in collection.runs)


def _means(axes: Axes, collection: Collection, curves: dict[Series, list[tuple[Array, Array]]]) -> None:
    """The mean over seeds, as far as all of them got, where there are enough seeds to lose sight of them."""
    colours = colours_of(collection.series)
    for series, own in curves.items():
        if len(own) >= ENOUGH_SEEDS:
            x = min((x for x, _ in own), key=lambda x: float(x[-1]))
            axes.plot(
                x,
                np.mean([np.interp(x, *curve) for curve in own], axis=0),
                color=colours[series],
                linewidth=2.2,
            )


def _limit(axes: Axes, curves: Sequence[Array]) -> None:
    """Fit the y axis to the strong curves with room about them: one wild step must not flatten the rest."""
    values = np.concatenate(curves) if curves else np.array([])
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, high = float(values.min()), float(values.max())
    room = 0.08 * (high - low) or 0.05 * abs(high) or 0.05
    bottom = low - room
    axes.set_ylim(max(0.0, bottom) if low >= 0 else bottom, high + room)


def _samples_axis(axes: Axes) -> None:
    thousands(axes)
    axes.set_xlabel("samples seen")


def _validation_chance(collection: Collection, metric: str) -> float | None:
    """The chance level that all validations share."""
    levels = {
        recall_chance(metric, int(row.get("pictures", 0)), int(row.get("captions", 0)))
        for _, run in collection.runs
        for row in run.validation
    }
    return levels.pop() if len(levels) == 1 else None


def _chance_line(axes: Axes, chance: float) -> None:
    axes.axhline(chance, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
    axes.annotate(
        f"chance {chance_text(chance)}",
        (1, chance),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8.5,
        color=MUTED,
    )


def _styled(
    collection: Collection,
) -> list[tuple[tuple[Series, Run], str, LineStyle]]:
    """Each run with the colour of its series and the line style of its seed."""
    colours, styles = colours_of(collection.series), _seed_styles(collection)
    return [((series, run), colours[series], styles[run.seed]) for series, run in collection.runs]


def _seed_styles(collection: Collection) -> dict[int | None, LineStyle]:
    seeds = sorted({run.seed for _, run in collection.runs}, key=lambda seed: (seed is not None, seed or 0))
    return {seed: SEED_STYLES[index % len(SEED_STYLES)] for index, seed in enumerate(seeds)}


def _detail(collection: Collection) -> str:
    """What the thin lines of a training curve are."""
    raw = ", faint: single steps" if len(collection.runs) <= _RAW_RUNS else ""
    several = any(_seeds_of(collection, series) >= ENOUGH_SEEDS for series in collection.series)
    return raw + ("; thin: seeds, thick: their mean." if several else ".")


def _legend(collection: Collection) -> list[Key]:
    colours, styles = colours_of(collection.series), _seed_styles(collection)
    trained = dict.fromkeys(series for series, _ in collection.runs)
    keys = [Key(series.label, colours[series]) for series in trained]
    if 1 < len(styles) <= len(SEED_STYLES):
        keys += [Key(f"seed {seed}", MUTED, line) for seed, line in styles.items()]
    return keys
