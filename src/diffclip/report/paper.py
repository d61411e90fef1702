"""The paper's tables with measured results and, if wanted, its own rows."""

from __future__ import annotations

from collections.abc import Iterable

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


def _panel(results: Results, panel: str) -> pd.DataFrame:
    """Return the records of a panel on clean images, with those of its average as the set "average"."""
    frame, (task, metric) = results.records, PANELS[panel]
    frame = frame[frame["corruption"].isna()]
    is_average = (frame["task"] == SIX_TASKS) & (frame["dataset"] == panel) & (frame["metric"] == AVERAGE)
    of_task = frame[frame["task"] == task]
    of_task = of_task[of_task["metric"] == (metric or of_task["dataset"].map(headline_metric))]
    return pd.concat([of_task, frame[is_average].assign(dataset="average")])


def _by_set(results: Results, name: str, printed: bool) -> Table | None:
    """Make Table 1 or 2: a row per model and part, a column per set, and the average."""
    title, panels = _BY_SET[name]
    parts = {label: _panel(results, panel) for label, panel in panels.items()}
    sets = _sorted_sets(dataset for part in parts.values() for dataset in part["dataset"])
    rows: list[list[str]] = []
    for label, part in parts.items():
        if part["dataset"].isin(["average"]).all():
            continue
        # of measures with one name, the one that most models have
        models = part.groupby(["dataset", "measure"])["model"].nunique().sort_values(kind="stable")
        best = models.reset_index("measure")["measure"].groupby("dataset").last()
        values = values_of(part[part["measure"] == part["dataset"].map(best)])
        values = values.assign(dataset=values["measure"].map({measure: one for one, measure in best.items()}))
        means = values.pivot_table(index="model", columns="dataset", values="value").reindex(columns=sets)
        rows += [[f"{model}, {label}", *map(percent, means.loc[model])] for model in in_order(means.index)]
        for row in paper_numbers()["tables"][PRINTED[panels[label]]] if printed else ():
            has_average = row["values"].keys() <= {*sets, "average"} and len(row["values"]) > 2
            columns = [one if has_average or one != "average" else "" for one in sets]
            cells = [_cell(row["values"].get(column), row["gains"].get(column)) for column in columns]
            if set(cells) != {"–"}:
                rows.append([f"{row['model']}, {row['pretraining']}, {label} (paper)", *cells])
    if not rows:
        return None
    content = pd.DataFrame(rows, columns=["model", *(DATASETS.get(dataset, dataset) for dataset in sets)])
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
    frame = _panel(results, panel)
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
    rows = [
        [model, *(cells.get((dataset, model), "–") for dataset in sets)]
        for model in in_order(dict.fromkeys(frame["model"]))
    ]
    for row in paper_numbers()["tables"][f"{PRINTED[panel]}-seeds"] if printed else ():
        known = {key: f"{value:.1f} ± {row['sds'][key]:.1f}" for key, value in row["values"].items()}
        if known.keys() & set(sets):
            label = f"{row['model']}, {row['pretraining']} (paper)"
            rows.append([label, *(known.get(dataset, "–") for dataset in sets)])
    note = "Standard deviation over repetitions of the evaluation of one model, as in the paper's Appendix B."
    heads = ["model", *(DATASETS.get(dataset, dataset) for dataset in sets)]
    return Table(name, title, pd.DataFrame(rows, columns=heads), note)


def _sorted_sets(sets: Iterable[str]) -> list[str]:
    """Sort sets as the paper does, then others, and the average last."""
    order = list(DATASETS)
    found = list(dict.fromkeys(sets))
    found.sort(key=lambda one: order.index(one) if one in order else len(order) + (one == "average"))
    return found


def _cell(value: float | None, gain: float | None = None) -> str:
    """Write a value in percent with a gain in points: "76.2 (+3.7)"."""
    text = "" if value is None else f"{value:.1f}"
    brackets = "" if gain is None else f"({percent(gain / 100, sign=True)})"
    return " ".join(filter(None, (text, brackets))) or "–"


def _note(printed: bool) -> str:
    paper = paper_numbers()
    note = f"Rows marked (paper): {paper['paper']}; {paper['architecture']}; in brackets the gain over CLIP."
    return note if printed else ""
