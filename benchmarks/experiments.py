"""Write the pages of experiments B and C from their records: docs/results/study_b.md, needle.md and their figures.

    python -m benchmarks.experiments [--results benchmarks/results] [--docs docs] [--runs runs/study_a]

Experiment A is a study like any other: `diffclip report benchmarks/results/study_a --markdown …` makes its page. With
--runs, the folder of A's runs, this program also estimates how far A's differences would move with other test images,
and writes study_a/over_images.json and study_a_images.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from benchmarks import needle
from benchmarks.about import parser_of, write_json
from diffclip import load_records
from diffclip.evaluation.results_file import read_outcomes
from diffclip.evaluation.statistics import compare_arms, mean_interval, with_verdicts
from diffclip.files import write_text
from diffclip.report.compare import is_above_chance
from diffclip.report.names import interval, p_text, percent
from diffclip.report.style import GRID, INK, colors_of, new_figure, style, write_figure
from diffclip.report.tables import Table
from diffclip.study.results import RUNS_FILE, read_timing
from diffclip.training.run_folder import read_lines

DISTRACTORS = (0, 4, 16)
PRIMARY = ("DiffCLIP", "CLIP")
SAME_RATE = ("DiffCLIP-same-rate", "CLIP-same-rate")
RATE = 2e-3
# CLIP-as-DiffCLIP is CLIP at the learning rate of DiffCLIP
OVER_IMAGES = (PRIMARY, ("DiffCLIP", "CLIP-as-DiffCLIP"), ("CLIP-as-DiffCLIP", "CLIP"))
RIVALS = ("CLIP-half-heads", "CLIP-gated", "CLIP-registers")
ZERO_SHOT = ("colours", "counts", "shapes")
NEEDLE_CONTRASTS = [PRIMARY, ("DiffCLIP", "CLIP-half-heads"), ("CLIP-gated", "CLIP")]
CHANCE = 12.5
_CELL = ["kind", "tokens", "strength"]
_WHY = {
    "correlation of A1 and A2": "map_correlation",
    "λ": "lambda",
    "signal to noise of A1": "snr_first",
    "of A1 − λ·A2": "snr_combined",
}


def needle_values(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracies of experiment C, with columns kind, tokens, strength, model, seed, value."""
    long = frame[[*_CELL, "model", "acc1"]].explode("acc1").rename(columns={"acc1": "value"})
    long["seed"] = long.groupby([*_CELL, "model"]).cumcount()
    return long.astype({"value": float})


def compare_needle(values: pd.DataFrame) -> pd.DataFrame:
    """Compute the contrasts of each cell; all but the primary one are corrected together."""
    parts = {
        cell: _contrasts(group, NEEDLE_CONTRASTS, PRIMARY if cell == needle.PRIMARY else None)
        for cell, group in values.groupby(_CELL, sort=False)
    }
    return with_verdicts(pd.concat(parts, names=_CELL).reset_index(_CELL).reset_index(drop=True))


def needle_page(file: Path, docs: Path) -> None:
    """Write the page and the figure of experiment C."""
    frame = pd.DataFrame(read_lines(file))
    values = needle_values(frame)
    contrasts = compare_needle(values)
    models = list(dict.fromkeys(values["model"]))
    with style():
        figure = new_figure(9.6, 6.2)
        panels = figure.subplots(2, 2, sharey="col")
        for row, kind in zip(panels, ("shared", "independent"), strict=True):
            kind_values = values[values["kind"] == kind]
            _plot_curves(row[0], kind_values[kind_values["strength"] == 1], "tokens", models)
            row[0].set_title(f"{kind} noise, σ = 1")
            _plot_curves(row[1], kind_values[kind_values["tokens"] == 64], "strength", models)
            row[1].set_title(f"{kind} noise, N = 64")
            row[0].set_ylabel("accuracy, %")
            row[0].set_xscale("log", base=2)
            row[0].set_xticks([16, 64, 256], ["16", "64", "256"])
        panels[1][0].set_xlabel("tokens N")
        panels[1][1].set_xlabel("noise strength σ")
        panels[0][0].legend(loc="lower left")
        write_figure(docs / "figures" / "needle.png", figure)
    differential = frame[frame["model"] == "DiffCLIP"]
    why = {"noise": _describe_cells(differential)} | {
        title: [_median(seeds) for seeds in differential[name]] for title, name in _WHY.items()
    }
    for model in ("CLIP", "CLIP-half-heads"):
        why[f"of {model}"] = [_median(seeds) for seeds in frame.loc[frame["model"] == model, "snr_first"]]
    timing_file = file.with_name(f"{file.stem}_timing.json")
    timing = json.loads(timing_file.read_text("utf-8")) if timing_file.is_file() else {}
    costs = {
        "model": models,
        "parameters": [f"{_parameters(model):,}" for model in models],
        "step time": [f"{timing[model]['ratio']:.2f}" if timing else "" for model in models],
    }
    primary = contrasts[contrasts["primary"]].iloc[0]
    _write(
        docs / "results" / "needle.md",
        "Experiment C: one layer, one needle",
        [
            f"Primary endpoint: {_sentence(primary)}.",
            "![Accuracy against N and σ](../figures/needle.png)",
            f"Accuracy over {primary['seeds']} seeds with 95 % intervals (bootstrap over seeds); dashed: chance, "
            f"{CHANCE} %. "
            "[Protocol](../experiments.md#c-one-layer-one-needle).",
            _table(contrasts, {"noise": _describe_cells(contrasts)}),
            "Differences in points. p: the primary one as it is, all others corrected together (Holm).",
            "Why: medians over seeds. Signal to noise is the needle's weight over the standard deviation of the other "
            "tokens' weights, in the best head of a map.",
            Table("why", "", pd.DataFrame(why)).to_markdown(),
            "What a model costs. A training step's time is relative to CLIP's, measured in turns.",
            Table("costs", "", pd.DataFrame(costs)).to_markdown(),
        ],
    )


def _parameters(arm: str) -> int:
    return sum(weights.numel() for weights in needle.make_weights(arm, [0]).values())


def clutter_values(folder: Path, metric: str = "mean_recall", dataset: str = "captions") -> pd.DataFrame:
    """Return a measure of experiment B on held-out scenes, for the models with the most seeds: columns distractors,
    model, seed, value, low, high, chance, count (of items), and the model's parameters.

    If the sweep of a model chose `RATE`, its runs also count as runs of its `SAME_RATE` arm, which trains at that rate.
    """
    parts = []
    for count in DISTRACTORS:
        frame = load_records(folder / f"k{count}")
        rows = frame[(frame["metric"] == metric) & (frame["dataset"] == dataset)]
        parameters = frame[frame["metric"] == "parameters"].groupby("model")["value"].first()
        rows = rows[["model", "seed", "value", "low", "high", "chance", "count"]].assign(
            parameters=rows["model"].map(parameters)
        )
        runs = pd.DataFrame(read_lines(folder / f"k{count}" / RUNS_FILE))
        rates = runs[runs["group"] == "models"].groupby("arm")["lr"].first()
        for arm, model in zip(SAME_RATE, PRIMARY, strict=True):
            if rates.get(model) == RATE:
                arm_seeds = rows.loc[rows["model"] == arm, "seed"]
                extra_rows = rows[(rows["model"] == model) & ~rows["seed"].isin(arm_seeds)]
                rows = pd.concat([rows, extra_rows.assign(model=arm)])
        seeds = rows.groupby("model")["seed"].transform("nunique")
        rows = rows[seeds == seeds.max()]
        parts.append(rows.assign(distractors=count))
    return pd.concat(parts, ignore_index=True)


def compare_clutter(values: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the interaction (the change of each contrast from no to most distractors), and the contrasts by number of
    distractors. The caller has to correct each of the two (`with_verdicts`)."""
    pairs = [
        PRIMARY,
        ("DiffCLIP-same-time", "CLIP"),
        *((model, SAME_RATE[1]) for model in (SAME_RATE[0], *RIVALS, "CLIP-half-heads-same-time")),
    ]
    wide = values.pivot_table(index=["model", "seed"], columns="distractors", values="value")
    changes = (wide[DISTRACTORS[-1]] - wide[DISTRACTORS[0]]).rename("value").dropna().reset_index()
    contrasts = [
        _contrasts(group, pairs).assign(distractors=count)
        for count, group in values.groupby("distractors")
        if set(PRIMARY) <= set(group["model"])
    ]
    return _contrasts(changes, pairs, PRIMARY), pd.concat(contrasts, ignore_index=True)


def _contrasts(
    values: pd.DataFrame, pairs: Sequence[tuple[str, str]], primary: tuple[str, str] | None = None
) -> pd.DataFrame:
    """Compare each measured pair of models with a fit of its own: with so many seeds a pooled residual gains nothing,
    and some models vary up to five times as much as others."""
    comparisons = [
        compare_arms(values[values["model"].isin(pair)], [pair], primary)
        for pair in pairs
        if set(pair) <= set(values["model"])
    ]
    return pd.concat(comparisons, ignore_index=True)


def clutter_page(folder: Path, docs: Path) -> None:
    """Write the page and the figure of experiment B."""
    values = clutter_values(folder)
    interaction, contrasts = map(with_verdicts, compare_clutter(values))
    primary = interaction[interaction["primary"]].iloc[0]
    by_set = {name: clutter_values(folder, "acc1", name) for name in ZERO_SHOT}
    parts = [compare_clutter(accuracies)[0].assign(set=name) for name, accuracies in by_set.items()]
    zero_shot = with_verdicts(pd.concat(parts, ignore_index=True).assign(primary=False))
    learned = [name for name, accuracies in by_set.items() if _is_learned(accuracies)]
    zero_shot.loc[~zero_shot["set"].isin(learned), "verdict"] = "not learned"
    with style():
        figure = new_figure(6.4, 4.6)
        axes = figure.subplots()
        models = list(dict.fromkeys(contrasts["model"]))
        colors = colors_of(["CLIP", *models])
        counts = sorted(values["distractors"].unique())
        for shift, model in enumerate(models):
            model_rows = contrasts[contrasts["model"] == model]
            x = [
                counts.index(count) + 0.06 * (shift - (len(models) - 1) / 2)
                for count in model_rows["distractors"]
            ]
            differences = 100 * model_rows["difference"]
            errors = [differences - 100 * model_rows["low"], 100 * model_rows["high"] - differences]
            label = f"{model} − {model_rows['against'].iloc[0]}"
            axes.errorbar(x, differences, errors, fmt="o-", color=colors[model], label=label, capsize=3)
        axes.axhline(0, color=INK, linewidth=1)
        axes.axhspan(-1, 1, color=GRID, alpha=0.6, linewidth=0)
        axes.set_xticks(range(len(counts)), [str(count) for count in counts])
        axes.set_xlabel("distractors K in each image")
        axes.set_ylabel("difference of mean recall, points")
        figure.legend(loc="outside lower center", ncols=2)
        write_figure(docs / "figures" / "study_b.png", figure)
    change = f"from K = {DISTRACTORS[0]} to K = {DISTRACTORS[-1]}"
    table = pd.concat([interaction, contrasts], ignore_index=True)
    rows = [f"change {change}"] * len(interaction) + [f"K = {count}" for count in contrasts["distractors"]]
    means = values.groupby(["model", "distractors"])["value"].mean().unstack()
    cells = means.map(percent).rename(columns={count: f"K = {count}" for count in counts})
    cells["parameters"] = values.groupby("model")["parameters"].first().map("{:,.0f}".format)
    timing = read_timing(folder / f"k{DISTRACTORS[0]}")
    cells["step time"] = [f"{timing[model]['ratio']:.2f}" if model in timing else "" for model in cells.index]
    _write(
        docs / "results" / "study_b.md",
        "Experiment B: noise of the scene",
        [
            f"Primary endpoint, the change of the advantage {change}: {_sentence(primary)}.",
            "![Advantage against distractors](../figures/study_b.png)",
            "Differences with 95 % intervals over seeds; grey band: ±1 point. p: the primary one as it is, all others "
            "corrected (Holm), changes and values apart. [Protocol](../experiments.md#b-noise-of-the-scene).",
            _table(table, {"distractors": rows}),
            f"Zero-shot accuracy on held-out scenes, change {change}; corrected together. Not learned: no model is "
            "above chance for any K, by a test over seeds and images.",
            _table(zero_shot, {"set": zero_shot["set"]}),
            "Zero-shot accuracy, %.",
            _accuracies_table(by_set),
            f"Mean recall on {values['count'].max():,.0f} held-out scenes, %, and what a model costs. A training "
            "step's time is relative to CLIP's, measured in turns.",
            Table("values", "", cells.reset_index()).to_markdown(),
        ],
    )


def _is_learned(accuracies: pd.DataFrame) -> bool:
    groups = accuracies.groupby(["model", "distractors"])
    return any(is_above_chance(group, "acc1") for _, group in groups)


def _accuracies_table(by_set: dict[str, pd.DataFrame]) -> str:
    """Make a table of accuracies: a row per model, and one of chance; a column per set and number of distractors."""
    columns = {}
    for name, accuracies in by_set.items():
        for count, group in accuracies.groupby("distractors"):
            means = group.groupby("model")["value"].mean()
            columns[f"{name}, K = {count}"] = pd.concat(
                [means, pd.Series({"chance": group["chance"].mean()})]
            )
    table = pd.DataFrame(columns).map(lambda value: "" if pd.isna(value) else percent(value))
    return Table("accuracies", "", table.rename_axis("model").reset_index()).to_markdown()


def over_images(runs: Path) -> pd.DataFrame:
    """Estimate experiment A's differences over other test images as well as other seeds, from the outcomes in its runs.

    The files are `*/*/results.jsonl`, and `*.jsonl` in `runs` itself: the same models measured on other images.

    Returns:
        A row per pair of models and (task, dataset, split), and a row for all splits of a set together. A row has the
        numbers of seeds and images; the difference (for retrieval of the mean of the six recalls, else of top-1); its
        standard errors over seeds (with fixed images) and over images (with fixed runs); and its 95 % interval over
        both, by a crossed model of seeds and images.
    """
    outcomes: dict[tuple[str, str, str], dict[tuple[str, int], list[pd.Series]]] = {}
    for file in sorted([*runs.glob("*/*/results.jsonl"), *runs.glob("*.jsonl")]):
        for key, (hits, clusters) in (read_outcomes(file) or {}).items():
            model, _, seed, _, task, dataset, split, metric, *_ = json.loads(key)
            if seed is not None and (metric == "acc1" or "_retrieval_recall@" in metric):
                owners = np.arange(len(hits)) if clusters is None else clusters
                parts = outcomes.setdefault((task, dataset, split), {}).setdefault((model, int(seed)), [])
                parts.append(pd.Series(hits).groupby(owners).mean())
    means = {
        measure: {run: pd.concat(parts, axis=1).mean(axis=1) for run, parts in by_run.items()}
        for measure, by_run in outcomes.items()
    }
    rows = []
    for model, against in OVER_IMAGES:
        gains = {measure: _gains(run_means, model, against) for measure, run_means in means.items()}
        for task, dataset in dict.fromkeys((task, dataset) for task, dataset, _ in gains):
            splits = {
                split: gain for (*pair, split), gain in gains.items() if pair == [task, dataset] and gain.size
            }
            if len(splits) > 1:
                splits[" and ".join(splits)] = pd.concat(splits.values(), axis=1, join="inner")
            names = {"model": model, "against": against, "task": task, "dataset": dataset}
            rows += [names | {"split": split} | _estimate_difference(gain) for split, gain in splits.items()]
    return pd.DataFrame(rows)


def _gains(means: dict[tuple[str, int], pd.Series], model: str, against: str) -> pd.DataFrame:
    """Compute the gain of `model` on each image that all runs saw: [seeds, images]."""
    seeds = sorted(seed for name, seed in means if name == model and (against, seed) in means)
    return pd.DataFrame({seed: means[model, seed] - means[against, seed] for seed in seeds}).dropna().T


def _estimate_difference(table: pd.DataFrame) -> dict[str, float]:
    gains = table.to_numpy()
    errors = [gains.mean(axis).std(ddof=1) / gains.shape[1 - axis] ** 0.5 for axis in (1, 0)]
    mean = gains.mean()
    # the interaction of seeds and images is in both errors: subtract it once
    residuals = gains - gains.mean(1, keepdims=True) - gains.mean(0) + mean
    interaction = (residuals**2).sum() / np.prod([size * (size - 1) for size in gains.shape])
    half_width = stats.norm.ppf(0.975) * np.sqrt(errors[0] ** 2 + errors[1] ** 2 - interaction)
    numbers = {"difference": mean, "low": mean - half_width, "high": mean + half_width}
    numbers |= {"error_over_seeds": errors[0], "error_over_images": errors[1]}
    sizes = dict(zip(("seeds", "images"), gains.shape, strict=True))
    return sizes | {name: round(float(value), 6) for name, value in numbers.items()}


def images_page(found: pd.DataFrame, docs: Path) -> None:
    """Write the page of experiment A's differences over other images."""
    columns = {
        "models": found["model"] + " − " + found["against"],
        "task": found["task"],
        "set": found["dataset"],
        "split": found["split"],
        "seeds": found["seeds"].astype(str),
        "images": found["images"].map("{:,}".format),
        "difference": [percent(value, sign=True) for value in found["difference"]],
        "95 % interval": [
            interval(low, high, sign=True) for low, high in zip(found["low"], found["high"], strict=True)
        ],
        "error over seeds": found["error_over_seeds"].map(percent),
        "over images": found["error_over_images"].map(percent),
    }
    _write(
        docs / "results" / "study_a_images.md",
        "Experiment A over other images",
        [
            "Differences in points: of the mean of the six recalls, or of top-1. CLIP-as-DiffCLIP is CLIP at "
            "DiffCLIP's learning rate. Intervals are over other training seeds and test images (a crossed model), "
            "not corrected for their number. Checkpoints and learning rates were chosen on val[:500]. "
            "[Protocol](../experiments.md#a-real-images).",
            Table("images", "", pd.DataFrame(columns)).to_markdown(),
        ],
    )


def _plot_curves(panel: Axes, values: pd.DataFrame, along: str, models: Sequence[str]) -> None:
    colors = colors_of(models)
    for model in models:
        groups = values[values["model"] == model].groupby(along)["value"]
        means = groups.mean()
        low, high = np.transpose([mean_interval(seeds.to_numpy(), bounds=None) for _, seeds in groups])
        errors = 100 * np.maximum(0.0, [means - low, high - means])
        look = {"fmt": "o-", "markersize": 4, "color": colors[model], "label": model}
        panel.errorbar(means.index, 100 * means, errors, **look)
    if along == "strength":
        panel.axhline(CHANCE, color=INK, linewidth=1, linestyle="--")
        panel.set_ylim(0, 103)


def _table(found: pd.DataFrame, first: dict[str, Iterable[str]]) -> str:
    rows = list(found.itertuples())
    cells = {
        **first,
        "models": [f"{row.model} − {row.against}" for row in rows],
        "difference": [percent(row.difference, sign=True) for row in rows],
        "95 % interval": [interval(row.low, row.high, sign=True) for row in rows],
        "seeds": found["seeds"].astype(str),
        "p": [p_text(row.p_holm) for row in rows],
        "verdict": [row.verdict + "; primary" * row.primary for row in rows],
    }
    return Table("", "", pd.DataFrame(cells)).to_markdown()


def _sentence(row: pd.Series) -> str:
    p = p_text(row["p"])
    bounds = interval(row["low"], row["high"], sign=True)
    return (
        f"{row['model']} − {row['against']} {percent(row['difference'], sign=True)} points, 95 % interval {bounds}, "
        f"p {p if '<' in p else f'= {p}'}, {row['seeds']} seeds: {row['verdict']}. Detectable with 80 % power: "
        f"{percent(row['detectable'])} points"
    )


def _describe_cells(frame: pd.DataFrame) -> list[str]:
    return [f"{cell.kind}, N = {cell.tokens}, σ = {cell.strength:g}" for cell in frame.itertuples()]


def _median(values: Sequence[float]) -> str:
    median = pd.Series(values).median()
    return f"{median:,.0f}" if median > 999 else f"{median:.3g}".replace("-", "−")


def _write(file: Path, title: str, parts: Sequence[str]) -> None:
    command = "`python -m benchmarks.experiments`"
    write_text(file, "\n\n".join([f"# {title}", *parts, command]) + "\n")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--runs", type=Path, help="the folder of experiment A's runs")
    options = parser.parse_args()
    if options.runs:
        differences = over_images(options.runs)
        write_json(options.results / "study_a" / "over_images.json", differences.to_dict("records"))
        images_page(differences, options.docs)
    if (options.results / "needle.jsonl").is_file():
        needle_page(options.results / "needle.jsonl", options.docs)
    if (options.results / "study_b").is_dir():
        clutter_page(options.results / "study_b", options.docs)


if __name__ == "__main__":
    main()
