"""Figures of trainings: loss, validation, λ, and the sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from diffclip.report.figures import Chart, add_legend, few_models
from diffclip.report.frame import Results
from diffclip.report.names import in_order
from diffclip.report.style import INK, WIDTH, colors_of, new_figure

Curve = dict[str, Any]
"""A line of `curves.jsonl`."""
Line = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
_STYLES = ("-", "--", ":", "-.")


def training_chart(results: Results) -> Chart | None:
    """Draw the training loss and the validation score over steps, one line per run and a strong one per arm's mean."""
    curves = _shown_curves(results)
    if not curves:
        return None
    losses = [(curve["arm"], _points(curve["step"], curve["loss"])) for curve in curves]
    validations = [(curve["arm"], curve["validation"]) for curve in curves]
    scores = [(arm, _points(one["step"], one["score"], 100)) for arm, one in validations if one["score"]]
    kinds = {"training loss": losses} | ({"validation score, %": scores} if scores else {})
    colors = colors_of(results.models)
    figure = new_figure(WIDTH, 0.6 + 2.3 * len(kinds))
    grid = figure.subplots(len(kinds), 1, squeeze=False).ravel()
    for axes, (label, lines) in zip(grid, kinds.items(), strict=True):
        _lines(axes, lines, colors, label)
    every = np.concatenate([loss for _, (_, loss) in losses])
    grid[0].set_ylim(top=float(np.nanquantile(every, 0.98)) * 1.05)
    if scores:
        grid[1].set_ylim(0)
    add_legend(figure, _arms(curves), colors)
    caption = (
        "Loss, and the validation score (mean of six recalls, in percent) that chooses the checkpoint. Thin: single "
        "runs; thick: their mean."
    )
    return Chart("training", "Training", caption, figure)


def lambda_chart(results: Results) -> Chart | None:
    """Draw λ and the correlation of both attention maps by layer at both ends of training, one line per run."""
    curves = [curve for curve in _shown_curves(results) if curve.get("lambda")]
    if not curves:
        return None
    kinds: dict[str, Callable[[Curve], Any]] = {"λ": lambda curve: curve["lambda"]}
    if any(_correlations(curve) for curve in curves):
        kinds["correlation of A1 and A2"] = _correlations
    towers = [tower for tower in ("vision", "text") if any(curve["lambda"].get(tower) for curve in curves)]
    colors = colors_of(results.models)
    figure = new_figure(WIDTH, 2.5 * len(kinds) + 0.3)
    grid = figure.subplots(len(kinds), len(towers), squeeze=False, sharey="row")
    for row, (label, read) in zip(grid, kinds.items(), strict=True):
        for axes, tower in zip(row, towers, strict=True):
            for curve in curves:
                lines, color = read(curve).get(tower) or [[]], colors[curve["arm"]]
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


def sweep_chart(results: Results) -> Chart | None:
    """Draw the validation score of a study's sweep over the learning rate, one line per model and weight decay."""
    if results.runs.empty or not (results.runs["group"] == "sweep").any():
        return None
    sweep = results.runs[results.runs["group"] == "sweep"].astype({"score": float})
    colors = colors_of(in_order(sweep["arm"].unique()))
    figure = new_figure(WIDTH, 2.9)
    axes = figure.subplots()
    for (model, decay), own in sweep.groupby(["arm", "weight_decay"]):
        line = _STYLES[sorted(sweep["weight_decay"].unique()).index(decay) % len(_STYLES)]
        # a rate with a seed that diverged has no score
        scores = 100 * own.groupby("lr")["score"].agg(lambda seeds: seeds.mean(skipna=False))
        label = f"{model}, weight decay {decay:g}"
        axes.plot(scores, line, marker="o", markersize=4, color=colors[model], label=label)
    rates = sorted(sweep["lr"].unique())
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("learning rate")
    axes.set_ylabel("validation score, %")
    axes.set_ylim(0)
    figure.legend(loc="outside upper left", ncols=2, fontsize=8)
    caption = "Best validation score of the sweep's runs, in percent, mean over its seeds."
    return Chart("sweep", "Sweep", caption, figure)


def _shown_curves(results: Results) -> list[Curve]:
    curves = [curve for curve in results.curves if curve.get("group") in (None, "models") and curve["step"]]
    models = few_models(list(dict.fromkeys(curve["arm"] for curve in curves)))
    return [curve for curve in curves if curve["arm"] in models]


def _arms(curves: Sequence[Curve]) -> list[str]:
    return in_order(dict.fromkeys(curve["arm"] for curve in curves))


def _correlations(curve: Curve) -> dict[str, Any]:
    return curve["validation"].get("map_correlation") or {}


def _points(x: Sequence[float], y: Sequence[float | None], scale: float = 1) -> Line:
    return np.array(x, float), scale * np.array(y, float)


def _lines(axes: Axes, lines: Sequence[tuple[str, Line]], colors: dict[str, str], label: str) -> None:
    """Draw a thin line per run, and a thick one for the mean of an arm's runs over the steps that they share."""
    for model, color in colors.items():
        own = [line for arm, line in lines if arm == model]
        width, alpha = (1.6, 1.0) if len(own) == 1 else (0.7, 0.5)
        for x, y in own:
            marker = "o" if len(x) < 12 else None
            axes.plot(x, y, color=color, linewidth=width, alpha=alpha, marker=marker, markersize=3)
        if len(own) > 1:
            shared = own[0][0][own[0][0] <= min(x[-1] for x, _ in own)]
            mean = np.mean([np.interp(shared, x, y) for x, y in own], axis=0)
            axes.plot(shared, mean, color=color, linewidth=2)
    axes.set_xlabel("step")
    axes.set_ylabel(label)
