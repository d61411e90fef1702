"""Figures of trainings: loss, validation, λ, the sweep, and results over checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from diffclip.report.figures import DASHED, Chart, add_legend, few_models
from diffclip.report.frame import Results, headlines, in_order, measures_of
from diffclip.report.runs import TELEMETRY
from diffclip.report.style import INK, WIDTH, colors_of, new_figure, style


def training_chart(results: Results) -> Chart | None:
    """Draw the training loss and the validation score over steps, a line a run and a strong one an arm's mean."""
    curves = _shown_curves(results)
    if not curves:
        return None
    scored = any(curve["validation"]["score"] for curve in curves)
    colors = colors_of(results.models)
    models = in_order(dict.fromkeys(curve["arm"] for curve in curves))
    with style():
        figure = new_figure(WIDTH, 5.2 if scored else 2.9)
        grid = figure.subplots(1 + scored, 1, squeeze=False).ravel()
        _lines(grid[0], curves, colors, lambda curve: (curve["step"], curve["loss"]), "training loss")
        losses = np.concatenate([np.array(curve["loss"], float) for curve in curves])
        grid[0].set_ylim(top=float(np.nanquantile(losses, 0.98)) * 1.05)
        if scored:

            def score(curve: dict[str, Any]) -> tuple[Any, Any]:
                points = np.array(curve["validation"]["score"], float)
                return curve["validation"]["step"], 100 * points

            _lines(grid[1], curves, colors, score, "validation score, %")
            chance = results.records[results.records["task"] == "validation"]["chance"].dropna()
            if len(chance):
                grid[1].axhline(100 * chance.mean(), color=INK, linestyle=DASHED, linewidth=1)
            grid[1].set_ylim(0)
        add_legend(figure, models, colors_of(results.models))
    dashed = " Dashed: chance." if scored and results.records["task"].eq("validation").any() else ""
    return Chart(
        "training",
        "Training",
        "Loss, and the validation score (mean of six recalls, in percent) that chooses the "
        f"checkpoint. Thin: single runs; thick: their mean.{dashed}",
        figure,
    )


def lambda_chart(results: Results) -> Chart | None:
    """Draw λ and the correlation of both attention maps by layer at the end of training, a line a run."""
    curves = [curve for curve in _shown_curves(results) if curve.get("lambda")]
    if not curves:
        return None
    kinds = {"λ": _lambda_by_layer}
    if any((curve["validation"].get("map_correlation") or {}) for curve in curves):
        kinds["correlation of A1 and A2"] = _correlation_by_layer
    towers = [tower for tower in ("vision", "text") if any(curve["lambda"].get(tower) for curve in curves)]
    models = in_order(dict.fromkeys(curve["arm"] for curve in curves))
    with style():
        figure = new_figure(WIDTH, 2.5 * len(kinds) + 0.3)
        grid = figure.subplots(len(kinds), len(towers), squeeze=False, sharey="row")
        colors = colors_of(results.models)
        for row, (label, read) in zip(grid, kinds.items(), strict=True):
            for axes, tower in zip(row, towers, strict=True):
                for curve in curves:
                    line = read(curve, tower)
                    if line:
                        layers = range(1, len(line) + 1)
                        axes.plot(
                            layers,
                            line,
                            "o-",
                            color=colors[curve["arm"]],
                            markersize=3,
                            linewidth=1.2,
                            alpha=0.8,
                        )
                axes.set_title(f"{tower} tower", fontsize=9.5)
                axes.set_xlabel("layer")
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
                if label != "λ":
                    axes.axhline(0, color=INK, linewidth=0.8)
            row[0].set_ylabel(label)
        add_legend(figure, models, colors_of(results.models))
    return Chart(
        "lambda",
        "λ and the two maps",
        "λ of each layer after the last step, and the correlation of its two attention "
        "maps at the last validation; a line a run.",
        figure,
    )


def _lambda_by_layer(curve: dict[str, Any], tower: str) -> list[float]:
    """Return λ of each layer after the last step; empty for a plain tower."""
    return list((curve["lambda"].get(tower) or [[]])[-1])


def _correlation_by_layer(curve: dict[str, Any], tower: str) -> list[float]:
    """Return the correlation of both maps of each layer at the last validation; empty where it is unknown."""
    return list(((curve["validation"].get("map_correlation") or {}).get(tower) or [[]])[-1])


def lambda_training_chart(results: Results) -> Chart | None:
    """Draw λ over training, a panel an arm and tower, a line a layer (the mean over seeds)."""
    curves = [curve for curve in _shown_curves(results) if curve.get("lambda")]
    shown = [
        (arm, tower)
        for arm in in_order(dict.fromkeys(curve["arm"] for curve in curves))
        for tower in ("vision", "text")
        if any(curve["arm"] == arm and curve["lambda"].get(tower) for curve in curves)
    ][:8]
    if not shown:
        return None
    deepest = 1
    with style():
        figure = new_figure(WIDTH, 2.0 * math.ceil(len(shown) / 2) + 0.5)
        grid = figure.subplots(math.ceil(len(shown) / 2), 2, squeeze=False, sharey=True).ravel()
        for axes, (arm, tower) in zip(grid, shown, strict=False):
            own = [curve for curve in curves if curve["arm"] == arm and curve["lambda"].get(tower)]
            least = min(len(curve["step"]) for curve in own)
            mean = np.mean([np.array(curve["lambda"][tower], float)[:least] for curve in own], axis=0)
            deepest = max(deepest, mean.shape[1])
            for layer, line in enumerate(mean.T):
                color = mpl.colormaps["viridis"](0.9 * layer / max(mean.shape[1] - 1, 1))
                axes.plot(own[0]["step"][:least], line, color=color, linewidth=1.3)
            axes.set_title(f"{arm}, {tower}", fontsize=9)
        for axes in grid[len(shown) :]:
            axes.set_visible(False)
        for axes in grid[::2]:
            axes.set_ylabel("λ")
        grid[0].set_xlabel("step")
        keys = [
            Line2D(
                [],
                [],
                color=mpl.colormaps["viridis"](0.9 * layer / max(deepest - 1, 1)),
                label=f"layer {layer + 1}",
            )
            for layer in range(deepest)
        ]
        figure.legend(handles=keys, loc="outside upper left", ncols=6 if deepest > 4 else deepest, fontsize=8)
    return Chart("lambda_training", "λ during training", "λ of each layer, mean over seeds.", figure)


def sweep_chart(results: Results) -> Chart | None:
    """Draw the validation score of a study's sweep over the learning rate, a line a model and weight decay."""
    runs = results.runs
    sweep = runs[runs["group"] == "sweep"] if len(runs) else runs
    if not len(sweep):
        return None
    models = in_order(dict.fromkeys(sweep["arm"]))
    decays = sorted(sweep["weight_decay"].unique())
    lines = ["-", "--", ":", "-."]
    with style():
        figure = new_figure(WIDTH, 2.9)
        axes = figure.subplots()
        for model, color in colors_of(models).items():
            for decay, line in zip(decays, lines, strict=False):
                own = sweep[(sweep["arm"] == model) & (sweep["weight_decay"] == decay)].sort_values("lr")
                label = f"{model}, weight decay {decay:g}"
                axes.plot(
                    own["lr"],
                    100 * own["score"].astype(float),
                    line,
                    marker="o",
                    markersize=4,
                    color=color,
                    label=label,
                )
        axes.set_xscale("log")
        rates = sorted(sweep["lr"].unique())
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel("learning rate")
        axes.set_ylabel("validation score, %")
        axes.set_ylim(0)
        figure.legend(loc="outside upper left", ncols=2, fontsize=8)
    return Chart(
        "sweep", "Sweep", "Best validation score of each run of the sweep, one seed, in percent.", figure
    )


def telemetry_chart(results: Results) -> Chart | None:
    """Draw accuracy in the batch, logit scale, gradient norm, learning rate and speed of run folders."""
    curves = [curve for curve in results.curves if curve.get("telemetry")]
    names = [name for name in TELEMETRY if any(name in curve["telemetry"] for curve in curves)]
    if not names:
        return None
    colors = colors_of(results.models)
    models = in_order(dict.fromkeys(curve["arm"] for curve in curves))
    with style():
        figure = new_figure(WIDTH, 1.9 * len(names) + 0.3)
        grid = figure.subplots(len(names), 1, squeeze=False).ravel()
        for axes, name in zip(grid, names, strict=True):
            own = [curve for curve in curves if name in curve["telemetry"]]
            _lines(
                axes,
                own,
                colors,
                lambda curve, name=name: (curve["step"], curve["telemetry"][name]),
                TELEMETRY[name],
            )
        add_legend(figure, models, colors_of(results.models))
    return Chart("telemetry", "Telemetry", "Thin: single runs; thick: their mean.", figure)


def course_chart(results: Results) -> Chart | None:
    """Draw measures over the checkpoints of trainings that were followed; at most eight measures."""
    course = results.course
    if course.empty:
        return None
    fields = measures_of(course)
    chosen = headlines(course)[:8]
    models = in_order(dict.fromkeys(course["model"]))
    colors = colors_of(results.models)
    with style():
        figure = new_figure(WIDTH, 2.2 * len(chosen) + 0.3)
        for axes, measure in zip(figure.subplots(len(chosen), 1, squeeze=False).ravel(), chosen, strict=True):
            own = course[course["measure"] == measure]
            for (model, _), line in own.groupby(["model", "seed"], dropna=False):
                points = 100 * line.groupby("steps")["value"].mean()
                axes.plot(points.index.to_numpy(float), points, "o-", markersize=3.5, color=colors[model])
            chance = own["chance"].dropna()
            if len(chance):
                axes.axhline(100 * chance.mean(), color=INK, linestyle=DASHED, linewidth=1)
            axes.set_title(fields.loc[measure, "label"], fontsize=9.5)
            axes.set_ylabel("%")
        axes.set_xlabel("step")
        add_legend(figure, models, colors_of(results.models))
    return Chart(
        "checkpoints", "Results over training", "In percent, of each checkpoint. Dashed: chance.", figure
    )


def _shown_curves(results: Results) -> list[dict[str, Any]]:
    curves = [curve for curve in results.curves if curve.get("group") in (None, "models") and curve["step"]]
    models = few_models(list(dict.fromkeys(curve["arm"] for curve in curves)))
    return [curve for curve in curves if curve["arm"] in models]


def _lines(
    axes: Axes, curves: Sequence[dict[str, Any]], colors: dict[str, str], read: Any, label: str
) -> None:
    """Draw a thin line a run, and a thick one for the mean of an arm's runs over the steps that they share."""
    for model, color in colors.items():
        own = [read(curve) for curve in curves if curve["arm"] == model]
        own = [(np.array(x, float), np.array(y, float)) for x, y in own if len(x)]
        single = len(own) == 1
        for x, y in own:
            axes.plot(
                x,
                y,
                color=color,
                linewidth=1.6 if single else 0.7,
                alpha=1 if single else 0.5,
                marker="o" if len(x) < 12 else None,
                markersize=3,
            )
        if len(own) > 1:
            shared = own[0][0][own[0][0] <= min(x[-1] for x, _ in own)]
            axes.plot(
                shared, np.mean([np.interp(shared, x, y) for x, y in own], axis=0), color=color, linewidth=2
            )
    axes.set_xlabel("step")
    axes.set_ylabel(label)
