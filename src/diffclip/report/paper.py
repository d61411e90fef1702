"""The paper's tables with measured results and, if wanted, its own rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from diffclip.evaluation.averages import AVERAGE, PANELS, SIX_TASKS, headline_metric
from diffclip.names import DATASETS
from diffclip.report.frame import Results, values_of
from diffclip.report.names import in_order, percent
from diffclip.report.printed import PRINTED, paper_numbers
from diffclip.report.tables import Table

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
        for row in paper_numbers()["tables"][PRINTED[panel]] if printed else ():
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
    for row in paper_numbers()["tables"][f"{PRINTED[panel]}-seeds"] if printed else ():
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


def _measure(results: Results, task: str, dataset: str, metric: str) -> int | None:
    """Find a measure; if several have this name, the one that most models have."""
    frame = results.records
    rows = frame[(frame["task"] == task) & (frame["dataset"] == dataset) & (frame["metric"] == metric)]
    rows = rows[rows["corruption"].isna()]
    return None if rows.empty else int(rows.groupby("measure")["model"].nunique().idxmax())


def _rows(results: Results, measures: Mapping[str, int | None]) -> list[list[str]]:
    """Write a row per model: the value of each measure."""
    values = values_of(results.records)
    columns = [-1 if measure is None else measure for measure in measures.values()]
    means = values.pivot_table(index="model", columns="measure", values="value").reindex(columns=columns)
    means = means.dropna(how="all")
    return [[model, *map(percent, means.loc[model])] for model in in_order(means.index)]


def _cell(value: float | None, gain: float | None = None) -> str:
    """Write a value in percent with a gain in points: "76.2 (+3.7)"."""
    text = "" if value is None or pd.isna(value) else f"{value:.1f}"
    brackets = "" if gain is None or pd.isna(gain) else f"({percent(gain / 100, sign=True)})"
    return " ".join(filter(None, (text, brackets))) or "–"


def _note(printed: bool) -> str:
    numbers = paper_numbers()
    note = (
        f"Rows marked (paper): {numbers['paper']}; {numbers['architecture']}; in brackets the gain over CLIP."
    )
    return note if printed else ""
