"""The figures of a report: forest plots, bars, a radar and training curves, each with a caption."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from diffclip.data.published_sets import base_of
from diffclip.evaluation.averages import AVERAGE, MEAN_OF_SHIFTS, OUT_OF_DOMAIN, PANELS, SIX_TASKS
from diffclip.names import DATASETS
from diffclip.report.compare import contrast_of, verdict_text
from diffclip.report.frame import Results, measures_of, values_of
from diffclip.report.labels import in_order, is_share, metric_label, percent
from diffclip.report.printed import paper_gains, paper_key
from diffclip.report.style import GRID, INK, MUTED, colors_of, new_figure

Curve = dict[str, Any]  # a line of `curves.jsonl`
Line = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
_DASHED = (0, (4, 3))
_LETTERS = 72  # maximum number in a line of a forest plot
# marks of a forest plot: how each is drawn, and the text in the caption; the key is the text in the legend
_MARKS: dict[str, tuple[dict[str, Any], str]] = {
    "margin of equivalence": (
        {"marker": "s", "color": GRID, "markersize": 8},
        "gray boxes are the declared margins of equivalence",
    ),
    "a pair of runs": ({"marker": ".", "color": MUTED}, "small dots are pairs of runs"),
    "chance": ({"marker": "x", "color": MUTED, "markersize": 6}, "× the difference at chance"),
    "gain in the paper": (
        {"marker": "D", "color": INK, "markerfacecolor": "none", "markersize": 5},
        "◇ the paper's gain on CC12M, same set and metric",
    ),
}


@dataclass(frozen=True)
class Chart:
    """A figure with the name of its file, its title and a caption that says axis, unit and marks."""

    name: str
    title: str
    caption: str
    figure: Figure


def forest_chart(
    results: Results, verdicts: pd.DataFrame, title: str, name: str = "forest", by: str = "label"
) -> Chart | None:
    """Draw differences in points with their intervals, one row per measure or arm, with paired runs as dots.

    Args:
        verdicts: rows of `results.verdicts`; metrics that are no shares are left out. A row without a difference shows
            its verdict alone.
        by: the column that names the rows: "label" (measures) or "arm".
    """
    rows = verdicts[verdicts["share"].astype(bool)] if len(verdicts) else verdicts
    if rows.empty or rows["difference"].isna().all():
        return None
    dots, colors, gains = _paired_differences(results, rows), colors_of(results.models), paper_gains()
    farthest = 1.25 * float(np.nanmax(np.abs(rows[["difference", "low", "high"]].to_numpy(float))))
    reach = min(100 * max(farthest, 1.05 * float(np.abs(np.concatenate(dots)).max(initial=0.01))), 100.0)
    several = rows["arm"].nunique() > 1 and by == "label"
    figure = new_figure(1)
    axes = figure.subplots()
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(False, axis="y")
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # over the grid and the line of zero
    # a long text must not make the axes narrow
    text: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "bbox": box, "in_layout": False}
    marks, label_above, y = set(), None, -1.0
    for (_, row), runs in zip(rows.iterrows(), dots, strict=True):
        y += 1
        label = contrast_of(row) if by == "arm" else row["label"]
        summary = percent(row["difference"], sign=True)
        if pd.notna(row["test"]) or pd.isna(row["difference"]):
            summary = f"{summary.strip('–')}  {verdict_text(row)}"
        if several or len(label + summary) > _LETTERS:  # the measure is named once, in a line of its own
            if not several or row["label"] != label_above:
                axes.text(0, y - 0.32, label, fontsize=9, color=INK, **text)
                label_above, y = row["label"], y + 0.45
            label = row["arm"] if several else ""
        axes.text(0, y - 0.32, label, fontsize=9, color=MUTED if several else INK, **text)
        axes.text(1, y - 0.32, summary, fontsize=8.5, ha="right", color=MUTED, **text)
        if pd.isna(row["difference"]):
            continue
        color = colors[row["arm"]]
        if pd.notna(row["margin"]):
            margin = 100 * row["margin"]
            axes.fill_betweenx([y - 0.22, y + 0.3], -margin, margin, color=GRID, alpha=0.8, linewidth=0)
            marks.add("margin of equivalence")
        axes.plot([100 * row["low"], 100 * row["high"]], [y, y], color=color, linewidth=2.2)
        if len(runs) > 1:
            axes.plot(100 * runs, [y + 0.16] * len(runs), ".", color=color, alpha=0.55, markersize=5)
            marks.add("a pair of runs")
        axes.plot(100 * row["difference"], y, "o", color=color, markersize=6)
        gain = gains.get(paper_key(row), {}).get("CC12M", math.nan)
        for mark, x in (
            ("chance", 100 * (row["chance"] - row["value_against"])),
            ("gain in the paper", gain),
        ):
            if abs(x) < reach:  # False for NaN
                axes.plot(x, y, linestyle="", clip_on=False, **_MARKS[mark][0])
                marks.add(mark)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_ylim(y + 0.4, -0.75)
    figure.set_figheight(0.75 + 0.47 * (y + 1))
    axes.set_xlim(-reach, reach)
    axes.set_xlabel("difference, percentage points")
    drawn = [mark for mark in _MARKS if mark in marks]
    if drawn:
        handles = [Line2D([], [], linestyle="", **_MARKS[mark][0], label=mark) for mark in drawn]
        figure.legend(handles=handles, loc="outside lower right", ncols=3, fontsize=8.5)
    known = ["Differences in percentage points", "lines are 95 % intervals over training runs"]
    caption = "; ".join([*known, *(_MARKS[mark][1] for mark in drawn)])
    return Chart(name, title, f"{caption}.", figure)


def _paired_differences(results: Results, rows: pd.DataFrame) -> list[npt.NDArray[np.float64]]:
    """Return for each row the differences of its pairs of runs; empty if its test is not paired."""
    run = ["fold"] if results.spec and results.spec.unit == "fold" else ["seed", "fold"]
    values = values_of(results.records).groupby(["measure", "model", *run])["value"].mean()
    return [
        (values[row["measure"], row["arm"]] - values[row["measure"], row["against"]]).dropna().to_numpy(float)
        if row["test"] == "paired" and row["measure"] >= 0
        else np.empty(0)
        for _, row in rows.iterrows()
    ]


def values_chart(results: Results, measures: Sequence[int]) -> Chart | None:
    """Draw values with their intervals over items, or the standard deviation over several runs."""
    records, fields = results.records, measures_of(results.records)
    shares = [measure for measure in measures if is_share(fields.loc[measure])]
    rows = [(fields.loc[measure, "label"], records[records["measure"] == measure]) for measure in shares]
    return _bar_chart(results, rows, "values", "Values", "Values in percent.")


def six_tasks_chart(results: Results) -> Chart | None:
    """Draw the paper's Figures 1 and 5: six tasks, each the mean over its sets."""
    frame = results.records
    averages = frame[(frame["task"] == SIX_TASKS) & (frame["metric"] == AVERAGE)]
    parts = [averages[averages["dataset"] == panel] for panel in PANELS]
    widest = [_widest(part) for part in parts if len(part)]
    labels = measures_of(averages)["label"] if widest else []
    rows = [(labels[part["measure"].iloc[0]], part) for part in widest]
    title = "Six tasks" if len(rows) == len(PANELS) else f"{len(rows)} of the paper's six tasks"
    return _bar_chart(results, rows, "six_tasks", title, "Means over the sets of each task, in percent.")


def out_of_domain_chart(results: Results) -> Chart | None:
    """Draw the paper's Figure 3: a set, its shifts and their mean."""
    frame = results.records
    families = frame[(frame["task"] == OUT_OF_DOMAIN) & (frame["metric"] == MEAN_OF_SHIFTS)]
    rows: list[tuple[str, pd.DataFrame]] = []
    accuracy = frame[(frame["task"] == "zero-shot") & (frame["metric"] == "acc1")]
    labels, prefix = measures_of(accuracy)["label"], metric_label({"task": "zero-shot", "metric": "acc1"})
    for base, family in families.groupby("dataset", sort=False):
        members = accuracy[(accuracy["dataset"] == base) | (accuracy["dataset"].map(base_of) == base)]
        for measure, group in members.groupby("measure", sort=False):
            rows.append((labels[measure].removeprefix(f"{prefix}, "), group))
        rows.append((f"{DATASETS.get(base, base)}, mean of shifts", _widest(family)))
    caption = "Zero-shot top-1 in percent on sets, their shifts and the mean of the shifts, without training on any."
    return _bar_chart(results, rows, "out_of_domain", "Out of domain", caption)


def pairs_chart(results: Results) -> Chart | None:
    """Draw the data of the paper's Figure 4, as bars: the share of right pairs by pattern (MMVP-VLM)."""
    frame = results.records
    pairs = frame[(frame["task"] == "mmvp") & frame["metric"].str.startswith("pair_accuracy/")]
    if pairs["metric"].nunique() < 3:
        return None
    pairs = pairs[pairs["dataset"] == pairs["dataset"].iloc[0]]
    rows = [(name.partition("/")[2], group) for name, group in pairs.groupby("metric", sort=False)]
    caption = "Share of pairs, in percent, of which both statements pick their own image; "
    caption += f"{int(pairs['count'].iloc[0])} pairs per pattern."
    return _bar_chart(results, rows, "minimal_pairs", "Minimal pairs", caption)


def training_chart(results: Results) -> Chart | None:
    """Draw the training loss and the validation score over steps: a thin line per run, a thick one per arm's mean."""
    curves = _curves(results)
    if not curves:
        return None
    kinds: dict[str, Callable[[Curve], Line]] = {
        "training loss": lambda curve: (np.array(curve["step"], float), np.array(curve["loss"], float))
    }
    if any(curve["validation"]["score"] for curve in curves):
        kinds["validation score, %"] = lambda curve: (
            np.array(curve["validation"]["step"], float),
            100 * np.array(curve["validation"]["score"], float),
        )
    colors = colors_of(results.models)
    figure = new_figure(0.6 + 2.3 * len(kinds))
    grid = figure.subplots(len(kinds), 1, squeeze=False).ravel()
    for axes, (label, line_of) in zip(grid, kinds.items(), strict=True):
        for arm in _arms(curves):
            lines = [line_of(curve) for curve in curves if curve["arm"] == arm]
            _draw_lines(axes, [line for line in lines if len(line[1])], colors[arm])
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("step")
        axes.set_ylabel(label)
    losses = np.concatenate([np.array(curve["loss"], float) for curve in curves])
    grid[0].set_ylim(top=float(np.nanquantile(losses, 0.98)) * 1.05)
    if len(kinds) > 1:
        grid[1].set_ylim(0)
    add_legend(figure, _arms(curves), colors)
    caption = (
        "Loss, and the validation score (mean of six recalls, in percent) that chooses the checkpoint. Thin: single "
        "runs; thick: their mean."
    )
    return Chart("training", "Training", caption, figure)


def _draw_lines(axes: Axes, lines: Sequence[Line], color: str) -> None:
    """Draw a thin line per run, and a thick one for their mean over the steps that they share."""
    width, alpha = (1.6, 1.0) if len(lines) == 1 else (0.7, 0.5)
    for x, y in lines:
        marker = "o" if len(x) < 12 else None
        axes.plot(x, y, color=color, linewidth=width, alpha=alpha, marker=marker, markersize=3)
    if len(lines) > 1:
        shared = lines[0][0][lines[0][0] <= min(x[-1] for x, _ in lines)]
        axes.plot(shared, np.mean([np.interp(shared, *line) for line in lines], 0), color=color, linewidth=2)


def lambda_chart(results: Results) -> Chart | None:
    """Draw λ and the correlation of A1 and A2 by layer, at the start and the end of training, one line per run."""
    curves = [curve for curve in _curves(results) if curve.get("lambda")]
    if not curves:
        return None
    kinds = {"λ": [curve["lambda"] for curve in curves]}
    correlations = [curve["validation"].get("map_correlation") or {} for curve in curves]
    if any(correlations):
        kinds["correlation of A1 and A2"] = correlations
    towers = [tower for tower in ("vision", "text") if any(own.get(tower) for own in kinds["λ"])]
    colors = colors_of(results.models)
    figure = new_figure(2.5 * len(kinds) + 0.3)
    grid = figure.subplots(len(kinds), len(towers), squeeze=False, sharey="row")
    for row, (label, values) in zip(grid, kinds.items(), strict=True):
        for axes, tower in zip(row, towers, strict=True):
            for curve, own in zip(curves, values, strict=True):
                lines, color = own.get(tower) or [[]], colors[curve["arm"]]
                layers = range(1, len(lines[0]) + 1)
                axes.plot(layers, lines[0], ":", color=color, linewidth=1)
                axes.plot(layers, lines[-1], "o-", color=color, markersize=3, linewidth=1.2, alpha=0.8)
            axes.set_title(f"{tower} tower", fontsize=9.5)
            axes.set_xlabel("layer")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if label != "λ":
                axes.axhline(0, color=INK, linewidth=0.8)
        row[0].set_ylabel(label)
    add_legend(figure, _arms(curves), colors)
    caption = (
        "λ of each layer after the last step (dotted: the first), and the correlation of its two attention maps at "
        "the last validation (dotted: the first); one line per run."
    )
    return Chart("lambda", "λ and the two maps", caption, figure)


def add_legend(figure: Figure, models: Sequence[str], colors: dict[str, str]) -> None:
    """Add a legend of the models and their colors above a figure."""
    keys = [Line2D([], [], color=colors[model], linewidth=4, label=model) for model in models]
    longest = max(map(len, models), default=1)
    figure.legend(handles=keys, loc="outside upper left", ncols=max(1, min(4, 56 // (longest + 6))))


def _bar_chart(
    results: Results, rows: Sequence[tuple[str, pd.DataFrame]], name: str, title: str, caption: str
) -> Chart | None:
    """Draw the values of some measures in percent, one bar per model, with whiskers and the chance level."""
    if not rows:
        return None
    models = in_order(dict.fromkeys(model for _, frame in rows for model in frame["model"]))
    colors, height = colors_of(results.models), 0.8 / len(models)
    figure = new_figure(0.9 + 0.24 * len(rows) * max(len(models), 2))
    axes = figure.subplots()
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # over the line of chance
    look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 7.5, "zorder": 5}
    whiskers: dict[str, None] = {}
    for y, (_, frame) in enumerate(rows):
        values = values_of(frame)
        for center, model in zip(y - 0.4 + height * (np.arange(len(models)) + 0.5), models, strict=True):
            own = values[values["model"] == model]
            mean, low, high = 100 * own[["value", "low", "high"]].astype(float).mean()
            if len(own) > 1:
                sd = 100 * float(own["value"].std(ddof=1))
                low, high = mean - sd, mean + sd
                whiskers["± one standard deviation over training runs"] = None
            elif not math.isnan(low):
                whiskers["95 % interval over items"] = None
            low, high = max(low, 0.0), min(high, 100.0)
            axes.barh(center, mean, height * 0.9, color=colors[model])
            axes.plot([low, high], [center, center], color=INK, linewidth=0.9)
            if not math.isnan(mean):
                axes.annotate(f"{mean:.1f}", (np.nanmax([mean, high]), center), (4, 0), bbox=box, **look)
        chance = 100 * values["chance"].mean()  # NaN, which is not drawn, without one
        axes.plot([chance, chance], [y - 0.45, y + 0.45], color=INK, linestyle=_DASHED, linewidth=1)
    axes.set_yticks(range(len(rows)), [textwrap.fill(label, 24) for label, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0)
    axes.margins(x=0.12, y=0.02)
    axes.grid(False, axis="y")
    axes.set_xlabel("%")
    add_legend(figure, models, colors)
    notes = [f" Whiskers: {' or '.join(whiskers)}."] if whiskers else []
    notes += [" Dashed: chance."] if any(frame["chance"].notna().any() for _, frame in rows) else []
    return Chart(name, title, f"{caption}{''.join(notes)}", figure)


def _widest(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep only the measure that most models have, because values of different measures are not comparable."""
    return frame[frame["measure"] == frame.groupby("measure")["model"].nunique().idxmax()]


def _curves(results: Results) -> list[Curve]:
    """Return the curves of the models, without those of ablations."""
    return [curve for curve in results.curves if curve.get("group") in (None, "models") and curve["step"]]


def _arms(curves: Sequence[Curve]) -> list[str]:
    return in_order(dict.fromkeys(curve["arm"] for curve in curves))
