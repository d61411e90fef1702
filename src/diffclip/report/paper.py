"""The paper's printed numbers, its tables with measured results, and its claims."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

from diffclip.evaluation.averages import AVERAGE, PANELS, SIX_TASKS, headline_metric
from diffclip.evaluation.statistics import with_verdicts
from diffclip.report.compare import (
    BASELINE,
    TREATED,
    clip_of,
    compare,
    is_one_run_each,
    verdict_class,
    verdict_text,
)
from diffclip.report.frame import Results, values_of
from diffclip.report.names import DATASETS, in_order, interval, percent, variant_in_name
from diffclip.report.tables import Table

# by panel of the figures: its printed table
_PRINTED = {
    "linear probing": "linear-probe",
    "few-shot": "few-shot",
    "image retrieval": "image-retrieval",
    "text retrieval": "text-retrieval",
    "zero-shot": "zero-shot",
}
# Tables 1 and 2: title, and the panel of each part
_BY_SET = {
    "classification": (
        "Linear probing and few-shot (%)",
        {"linear probe": "linear probing", "few-shot": "few-shot"},
    ),
    "retrieval": (
        "Retrieval (recall at 5, %) and zero-shot classification (top-1, %)",
        {"text→image": "image retrieval", "image→text": "text retrieval", "zero-shot": "zero-shot"},
    ),
}
# Tables 4 and 5: title, and the panel
_SPREAD = {
    "linear_probe_spread": ("Linear probing, mean ± sd (%)", "linear probing"),
    "few_shot_spread": ("Few-shot, mean ± sd (%)", "few-shot"),
}


@cache
def paper_numbers() -> dict[str, Any]:
    """Read the paper's numbers, with the place of each (`paper_numbers.json`).

    `tables` has the rows of each table by its name. The `values`, `sds` and `gains` of a row are by set, with an
    "average" (the value of the only set if no average is printed).
    """
    text = files("diffclip.report").joinpath("paper_numbers.json").read_text("utf-8")
    paper: dict[str, Any] = json.loads(text)
    for table in paper["tables"]:
        for row in table["rows"]:
            for key, average in (("values", "average"), ("sds", "average_sd"), ("gains", "average_gain")):
                if numbers := row.get(key, []):
                    numbers = [*numbers, row.get(average, numbers[0])]
                row[key] = dict(zip([*table["sets"], "average"], numbers, strict=False))
    paper["tables"] = {table["name"]: table["rows"] for table in paper["tables"]}
    return paper


@cache
def paper_gains() -> dict[tuple[str, str, str], dict[str, float]]:
    """Collect the paper's gains in points: (`panel` of `compare`, model, baseline) → pretraining → gain."""
    gains: dict[tuple[str, str, str], dict[str, float]] = {}
    for panel, name in _PRINTED.items():
        for row in paper_numbers()["tables"][name]:
            if row["gains"]:
                panel_gains = gains.setdefault((panel, row["model"], BASELINE), {})
                panel_gains[row["pretraining"]] = row["gains"]["average"]
    for statement in paper_numbers()["statements"]:
        key = (statement["panel"], statement["model"], statement["baseline"])
        gains.setdefault(key, {}).setdefault(statement["pretraining"], statement["gain"])
    pairs = {row["model"]: row["printed"] for row in paper_numbers()["pairs"]["rows"]}
    gains[("mmvp", TREATED, BASELINE)] = {"CC12M": round(pairs[TREATED] - pairs[BASELINE], 1)}
    return gains


def cc12m_gains() -> dict[tuple[str, str, str], float]:
    """Return the gains on CC12M as fractions for a forest plot, by the keys of `paper_gains`."""
    return {key: gain["CC12M"] / 100 for key, gain in paper_gains().items() if "CC12M" in gain}


def format_gains() -> dict[tuple[str, str, str], str]:
    """Return the gains as "CC3M +1.0, CC12M +0.3", by the keys of `paper_gains`."""
    return {
        key: ", ".join(f"{corpus} {percent(gain / 100, sign=True)}" for corpus, gain in gains.items())
        for key, gains in paper_gains().items()
    }


def claims_table(results: Results) -> Table | None:
    """Test the paper's claims about its models: the gains of Sections 4.2 to 4.6, the parameters and the time.

    The p-values of the gains are corrected together (Holm). None if nothing was measured.
    """
    sizes: dict[str, dict[str, str]] = {}
    for model in results.models:
        variant = variant_in_name(model)
        sizes.setdefault(model.replace(variant, "", 1), {})[variant] = model
    # the size that most models have
    models = max(sizes.values(), key=len, default={})
    claims = {}
    for panel, model, baseline in paper_gains():
        if panel == "mmvp":
            measure = _measure(results, "mmvp", None, "pair_accuracy")
        else:
            measure = _measure(results, SIX_TASKS, panel, AVERAGE)
        if measure is not None and {model, baseline} <= models.keys():
            claims[measure, models[model], models[baseline]] = panel, model, baseline
    measures = dict.fromkeys(measure for measure, _, _ in claims)
    contrasts = dict.fromkeys((model, baseline) for _, model, baseline in claims)
    gains = compare(results, list(measures), list(contrasts))
    if len(gains):  # larger is better in all of them
        frame = gains.set_index(["measure", "model", "against"], drop=False)
        gains = with_verdicts(frame.loc[[key for key in claims if key in frame.index]].reset_index(drop=True))
    rows, classes = [], []
    for _, row in gains.iterrows():
        panel, model, baseline = claims[row["measure"], row["model"], row["against"]]
        task = "minimal pairs" if panel == "mmvp" else panel
        numbers = percent(row["difference"], sign=True), interval(row["low"], row["high"], sign=True)
        printed = format_gains()[panel, model, baseline]
        rows.append([f"{model} − {baseline}", task, printed, *numbers, verdict_text(row)])
        classes.append(verdict_class(row))
    for name, printed, value, bounds in _costs(results, models):
        rows.append([f"{TREATED} − {BASELINE}", name, printed, value, bounds, "–"])
        classes.append("")
    if not rows:
        return None
    table = pd.DataFrame(rows, columns=["claim", "task", "paper", "difference", "95 % interval", "verdict"])
    note = (
        "Paper: gains printed for ViT-B/16, one training run per model (Tables 1 and 2, Sections 4.3 to 4.6)."
    )
    if len(gains) and is_one_run_each(gains):
        return Table("claims", "The paper's claims", table.drop(columns=["95 % interval", "verdict"]), note)
    note += " p are corrected over this table (Holm)."
    return Table("claims", "The paper's claims", table, note, classes)


def _costs(results: Results, models: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield how many more parameters and how much more time per step DiffCLIP needs than CLIP."""
    parameters, treated, baseline = results.parameters, models.get(TREATED), models.get(BASELINE)
    if treated in parameters and baseline in parameters:
        yield "parameters", "+0.003 %", f"+{100 * (parameters[treated] / parameters[baseline] - 1):.4f} %", ""
    if treated in results.timing:
        ratio, low, high = (100 * (results.timing[treated][key] - 1) for key in ("ratio", "low", "high"))
        bounds = f"{low:+.0f} to {high:+.0f} %".replace("-", "−")
        yield "time per step", "negligible", f"{ratio:+.0f} %", bounds


def paper_tables(results: Results, printed: bool = False) -> list[Table]:
    """Make the paper's tables for which there are results; `printed` adds the paper's own rows, marked (paper)."""
    tables = [_by_set(results, name, printed) for name in _BY_SET]
    tables += [_pope(results, printed), *(_spread(results, name, printed) for name in _SPREAD)]
    return [table for table in tables if table is not None]


def _by_set(results: Results, name: str, printed: bool) -> Table | None:
    """Make Table 1 or 2: a row per model and part, a column per set, and the average."""
    title, parts = _BY_SET[name]
    frame = results.records[results.records["corruption"].isna()]
    tasks = {PANELS[panel][0] for panel in parts.values()}
    sets = _sorted_sets(frame.loc[frame["task"].isin(tasks), "dataset"])
    rows: list[list[str]] = []
    for label, panel in parts.items():
        task, metric = PANELS[panel]
        measures = {
            dataset: _measure(results, task, dataset, metric or headline_metric(dataset)) for dataset in sets
        }
        if not any(measure is not None for measure in measures.values()):
            continue
        measures["average"] = _measure(results, SIX_TASKS, panel, AVERAGE)
        rows += [[f"{row[0]}, {label}", *row[1:]] for row in _rows(results, measures)]
        for row in paper_numbers()["tables"][_PRINTED[panel]] if printed else ():
            has_average = row["values"].keys() <= {*sets, "average"} and len(row["values"]) > 2
            cells = [_cell(row["values"].get(dataset), row["gains"].get(dataset)) for dataset in sets]
            average = _cell(row["values"]["average"], row["gains"].get("average")) if has_average else "–"
            if set(cells) != {"–"}:
                rows.append([f"{row['model']}, {row['pretraining']}, {label} (paper)", *cells, average])
    if not rows:
        return None
    content = pd.DataFrame(
        rows, columns=["model", *(DATASETS.get(dataset, dataset) for dataset in sets), "average"]
    )
    return Table(name, title, content.loc[:, content.ne("–").any()], _note(printed))


def _pope(results: Results, printed: bool) -> Table | None:
    """Make Table 3: POPE by model and question file."""
    records = results.records[results.records["task"] == "pope"]
    if records.empty:
        return None
    metrics = ("accuracy", "precision", "recall", "f1", "yes_ratio")
    rows = []
    for (dataset, split), part in records.groupby(["dataset", "split"], sort=False):
        means = part.pivot_table(index="model", columns="metric", values="value", aggfunc="mean")
        for model in in_order(means.index):
            cells = [percent(means.loc[model].get(metric)) for metric in metrics]
            rows.append([f"{model}, {DATASETS.get(dataset, dataset)} {split}", *cells])
    for row in paper_numbers()["answers"]["rows"] if printed else ():
        f1 = 2 * row["precision"] * row["recall"] / (row["precision"] + row["recall"])
        cells = [f"{value:.1f}" for value in (row["accuracy"], row["precision"], row["recall"], f1)]
        rows.append([f"{row['model']}, CC12M, {row['split']} (paper)", *cells, "–"])
    heads = ["model and file", "accuracy", "precision", "recall", "F1", "answers yes"]
    return Table("pope", "POPE (%)", pd.DataFrame(rows, columns=heads), _note(printed))


def _spread(results: Results, name: str, printed: bool) -> Table | None:
    """Make Table 4 or 5: mean ± standard deviation over the draws of an evaluation, by set."""
    title, panel = _SPREAD[name]
    task, metric = PANELS[panel]
    frame = results.records[results.records["corruption"].isna()]
    averages = frame[(frame["task"] == SIX_TASKS) & (frame["dataset"] == panel)].assign(dataset="average")
    frame = frame[frame["task"] == task]
    frame = pd.concat([frame[frame["metric"] == (metric or frame["dataset"].map(headline_metric))], averages])
    groups = frame.groupby(["dataset", "model", "seed"], dropna=False, sort=False)
    spread = groups.agg(
        mean=("value", "mean"), std=("value", "std"), count=("value", "size"), draws=("draw", "count")
    )
    if not (spread["draws"] > 1).any():
        return None
    spread = spread[spread["count"].gt(1) | spread["draws"].eq(0)].fillna({"std": 0.0})  # no draws
    means = (100 * spread).groupby(["dataset", "model"], sort=False)[["mean", "std"]].mean()
    cells = {key: f"{row['mean']:.1f} ± {row['std']:.1f}" for key, row in means.iterrows()}
    sets = _sorted_sets(dataset for dataset, _ in cells)
    models = in_order(dict.fromkeys(frame["model"]))
    rows = [[model, *(cells.get((dataset, model), "–") for dataset in sets)] for model in models]
    for row in paper_numbers()["tables"][f"{_PRINTED[panel]}-seeds"] if printed else ():
        known = row["values"]
        numbers = [
            f"{known[dataset]:.1f} ± {row['sds'][dataset]:.1f}" if dataset in known else "–"
            for dataset in sets
        ]
        if set(numbers) != {"–"}:
            rows.append([f"{row['model']}, {row['pretraining']} (paper)", *numbers])
    note = "Standard deviation over repetitions of the evaluation of one model, as in the paper's Appendix B."
    heads = ["model", *(DATASETS.get(dataset, dataset) for dataset in sets)]
    return Table(name, title, pd.DataFrame(rows, columns=heads), note)


def _sorted_sets(sets: Iterable[str]) -> list[str]:
    """Sort sets as the paper does, others last."""
    order = list(DATASETS)
    return sorted(dict.fromkeys(sets), key=lambda one: order.index(one) if one in order else len(order))


def _measure(results: Results, task: str, dataset: str | None, metric: str) -> int | None:
    """Find a measure; if several have this name, the one that most models have."""
    frame = results.records
    rows = frame[(frame["task"] == task) & (frame["metric"] == metric) & frame["corruption"].isna()]
    if dataset is not None:
        rows = rows[rows["dataset"] == dataset]
    return None if rows.empty else int(rows.groupby("measure")["model"].nunique().idxmax())


def _rows(results: Results, measures: Mapping[str, int | None]) -> list[list[str]]:
    """Write a row per model: the value of each measure, and in brackets its difference to CLIP."""
    values = values_of(results.records)
    columns = [-1 if measure is None else measure for measure in measures.values()]
    means = values.pivot_table(index="model", columns="measure", values="value").reindex(columns=columns)
    means = means.dropna(how="all")
    models = in_order(means.index)
    rows = []
    for model in models:
        model_means = means.loc[model]
        base = clip_of(model, models)
        gains = model_means * float("nan") if base in (None, model) else model_means - means.loc[base]
        cells = [_cell(100 * value, 100 * gain) for value, gain in zip(model_means, gains, strict=True)]
        rows.append([model, *cells])
    return rows


def _cell(value: float | None, gain: float | None = None) -> str:
    """Write a value in percent with a gain in points: "76.2 (+3.7)"."""
    text = "" if value is None or pd.isna(value) else f"{value:.1f}"
    brackets = "" if gain is None or pd.isna(gain) else f"({percent(gain / 100, sign=True)})"
    return " ".join(filter(None, (text, brackets))) or "–"


def _note(printed: bool) -> str:
    note = "In brackets the difference to CLIP in points; whether it is real is in the first table."
    if printed:
        numbers = paper_numbers()
        note += f" Rows marked (paper): {numbers['paper']}; {numbers['architecture']}."
    return note
