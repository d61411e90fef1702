"""The figure of the ablations: a dot a seed, the mean and its 95 % interval, beside CLIP's and DiffCLIP's means."""

from __future__ import annotations

from collections.abc import Collection

from matplotlib.axes import Axes

from diffclip.evaluation.significance import over_seeds
from diffclip.report.charts import Chart, Key, Panel, percent
from diffclip.report.compare import ENOUGH_SEEDS
from diffclip.report.study_ablations import Ablated, ablated, seeds_text, shared_seeds
from diffclip.report.study_data import StudyData
from diffclip.report.style import COLOURS, INK, MUTED, LineStyle
from diffclip.study.recipe import BASELINE, TREATED

_WIDTH = 7.2
_LINES: dict[str, LineStyle] = {BASELINE: "-", TREATED: (0, (5, 2))}


def ablation_chart(data: StudyData) -> Chart | None:
    """A row an arm, in the order of the table; None where there are no ablations."""
    rows = ablated(data)
    if not rows:
        return None
    shown = [row.arm for row in rows]
    last = max((shown.index(arm) for arm in (BASELINE, TREATED) if arm in shown), default=0)

    shared = shared_seeds(rows)
    filled = shared if any(len(row.scores) > len(shared) for row in rows) else []

    def draw(axes: Axes) -> None:
        for row in rows:
            if row.arm in _LINES:
                axes.axvline(
                    row.mean, color=COLOURS[row.arm], linestyle=_LINES[row.arm], linewidth=1.2, alpha=0.8
                )
        for y, row in enumerate(rows):
            _draw_row(axes, y, row, COLOURS[data.study.tuned_as(row.arm)], filled)
        if last < len(rows) - 1:
            # what follows the chain
            axes.axhline(last + 0.5, color=MUTED, linewidth=0.8)
        axes.set_yticks(range(len(rows)), shown)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        percent("x", axes)

    intervals = any(len(row.scores) >= ENOUGH_SEEDS for row in rows)
    return Chart(
        name="ablations",
        title="Ablations",
        caption="The best mean of the six recalls on the validation split. Points: seeds. Bar: their mean"
        + (", with its 95 % interval" if intervals else "")
        + (f". Filled: {seeds_text(filled)}, which all have; only these compare all arms" if filled else "")
        + ". Above the line the chain from CLIP to DiffCLIP, beneath it what is one factor away from either; in blue "
        "the arms with CLIP's learning rate and weight decay, the others with DiffCLIP's.",
        panels=[Panel("Validation score by arm", draw, height=1.0 + 0.29 * len(rows), width=_WIDTH)],
        legend=[Key(f"mean of {arm}", COLOURS[arm], line) for arm, line in _LINES.items() if arm in shown],
        dense=True,
    )


def _draw_row(axes: Axes, y: int, row: Ablated, colour: str, filled: Collection[int]) -> None:
    values = list(row.scores.values())
    if len(values) >= ENOUGH_SEEDS:
        summary = over_seeds(values)
        axes.plot([summary.low or 0.0, summary.high or 0.0], [y, y], color=colour, linewidth=2)
    axes.plot([row.mean], [y], "|", markersize=13, markeredgewidth=2.6, color=colour)
    for ground, shown in (
        ("white", row.scores.keys() - set(filled)),
        (colour, row.scores.keys() & set(filled)),
    ):
        own = [row.scores[seed] for seed in sorted(shown)]
        if own:
            places = [y] * len(own)
            axes.plot(own, places, "o", markersize=4, color=ground, markeredgecolor=INK, markeredgewidth=0.8)
