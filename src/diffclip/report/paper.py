"""The paper's tables with measured results and, if wanted, its own rows."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from diffclip.evaluation.averages import AVERAGE, PANELS, SIX_TASKS, headline_metric
from diffclip.names import DATASETS
from diffclip.report.frame import Results
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


def paper_tables(results: Results, printed: bool = False) -> list[Table]:
    """Make the paper's tables for which there are results; `printed` adds the paper's own rows, marked (paper)."""
    tables = [_by_set(results, name, printed) for name in _BY_SET]
    return [table for table in [*tables, _pope(results, printed)] if table is not None]


def _panel(results: Results, panel: str) -> pd.DataFrame:
    """Return the records of a panel on clean images, with those of its average as the set "average"."""
    frame, (task, metric) = results.records, PANELS[panel]
    frame = frame[frame["corruption"].isna()]
    is_average = (frame["task"] == SIX_TASKS) & (frame["dataset"] == panel) & (frame["metric"] == AVERAGE)
    of_task = frame[frame["task"] == task]
    of_task = of_task[of_task["metric"] == (metric or of_task["dataset"].map(headline_metric))]
    return pd.concat([of_task, frame[is_average].assign(dataset="average")])


def _by_set(results: Results, name: str, printed: bool) -> Table | None:
    """Make Table 1 or 2: a row per model and part, a column per set, and the average.

    If an evaluation drew several times, a cell has the standard deviation over draws too, as in Tables 4 and 5.
    """
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
        part = part[part["measure"] == part["dataset"].map(best)]
        runs = part.groupby(["model", "dataset", "seed", "fold"], dropna=False)["value"].agg(["mean", "std"])
        spread = 100 * runs.groupby(["model", "dataset"]).mean()
        cells = {key: _cell(mean, sd) for key, mean, sd in spread.itertuples()}
        for model in in_order(part["model"].unique()):
            rows.append([f"{model}, {label}", *(cells.get((model, dataset), "–") for dataset in sets)])
        tables, name_of_panel = paper_numbers()["tables"], PRINTED[panels[label]]
        for row in [*tables[name_of_panel], *tables.get(f"{name_of_panel}-seeds", ())] if printed else ():
            has_average = row["values"].keys() <= {*sets, "average"} and len(row["values"]) > 2
            columns = [one if has_average or one != "average" else "" for one in sets]
            own = [_cell(*(row[key].get(column) for key in ("values", "sds", "gains"))) for column in columns]
            if set(own) != {"–"}:
                source = "paper, over seeds" if row["sds"] else "paper"
                rows.append([f"{row['model']}, {row['pretraining']}, {label} ({source})", *own])
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


def _sorted_sets(sets: Iterable[str]) -> list[str]:
    """Sort sets as the paper does, then others, and the average last."""
    order = list(DATASETS)
    found = list(dict.fromkeys(sets))
    found.sort(key=lambda one: order.index(one) if one in order else len(order) + (one == "average"))
    return found


def _cell(value: float | None, sd: float | None = None, gain: float | None = None) -> str:
    """Write a value in percent with a standard deviation and a gain in points: "76.2 ± 0.1", "76.2 (+3.7)"."""
    parts = [(value, "{:.1f}"), (sd, "± {:.1f}")]
    texts = [form.format(number) for number, form in parts if number is not None and not pd.isna(number)]
    return " ".join([*texts, *([] if gain is None else [f"({percent(gain / 100, sign=True)})"])]) or "–"


def _note(printed: bool) -> str:
    paper = paper_numbers()
    note = f"Rows marked (paper): {paper['paper']}; {paper['architecture']}; in brackets the gain over CLIP."
    return f"{note} ±: over draws." if printed else ""
