"""The paper's tables with the results at hand, and its own rows beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from diffclip.evaluation.statistics import compare_counts
from diffclip.report.compare import BASELINE, TREATED
from diffclip.report.frame import (
    DATASETS,
    PANELS,
    PER_CLASS,
    Results,
    in_order,
    interval,
    percent,
    values_of,
    variant_of,
)
from diffclip.report.paper import PANEL_TABLES, paper_gains, paper_numbers, printed_table
from diffclip.report.tables import Table


def paper_tables(results: Results, printed: bool = False) -> list[Table]:
    """Make the paper's tables that there are results for; with `printed`, its own rows are added, marked (paper)."""
    made = (
        _six_tasks(results, printed),
        _classification(results, printed),
        _retrieval(results, printed),
        _pairs(results, printed),
        _pope(results, printed),
        _spread(results, "linear-probe", "linear_probe_spread", "Linear probing, mean ± sd", printed),
        _spread(results, "few-shot", "few_shot_spread", "Few-shot, mean ± sd", printed),
    )
    return [table for table in made if table is not None]


def _six_tasks(results: Results, printed: bool) -> Table | None:
    columns = {
        panel[0].upper() + panel[1:]: _measure(results, "six-tasks", panel, "average") for panel in PANELS
    }
    columns = {name: measure for name, measure in columns.items() if measure is not None}
    if not columns:
        return None
    rows = _rows(results, columns)
    if printed:
        for model, pretraining in _paper_rows():
            cells = []
            for name in columns:
                table = PANEL_TABLES.get(name.lower())
                value = _printed_average(table, model, pretraining) if table else None
                gain = paper_gains().get((name.lower(), model, BASELINE), {}).get(pretraining)
                cells.append(_cell(value, gain))
            rows.append([f"{model}, {pretraining} (paper)", *cells])
    return Table(
        "six_tasks", "Six tasks (%)", pd.DataFrame(rows, columns=["model", *columns]), _note(printed)
    )


def _classification(results: Results, printed: bool) -> Table | None:
    """Make Table 1: linear probing and few-shot classification by set."""
    return _by_set(
        results,
        "classification",
        "Linear probing and few-shot (%)",
        {
            "linear probe": (
                "linear-probe",
                "linear probing",
                lambda name: "mean_per_class_recall" if name in PER_CLASS else "acc1",
            ),
            "few-shot": ("few-shot", "few-shot", lambda name: "acc1"),
        },
        printed,
    )


def _retrieval(results: Results, printed: bool) -> Table | None:
    """Make Table 2: retrieval at 5 and zero-shot ImageNet."""
    return _by_set(
        results,
        "retrieval",
        "Retrieval (recall at 5, %) and zero-shot classification (top-1, %)",
        {
            "text→image": ("image-retrieval", "image retrieval", lambda name: "image_retrieval_recall@5"),
            "image→text": ("text-retrieval", "text retrieval", lambda name: "text_retrieval_recall@5"),
            "zero-shot": ("zero-shot", "zero-shot", lambda name: "acc1"),
        },
        printed,
    )


def _by_set(
    results: Results,
    name: str,
    title: str,
    parts: dict[str, tuple[str, str, Callable[[str], str]]],
    printed: bool,
) -> Table | None:
    """Make a table with a row a model and part, and a column a set and the average."""
    frame = results.records[results.records["corruption"].isna()]
    rows: list[list[str]] = []
    tasks = {label: "retrieval" if "retrieval" in table else table for label, (table, _, _) in parts.items()}
    every = frame[frame["task"].isin(tasks.values())]
    sets = sorted(
        dict.fromkeys(every["dataset"]), key=lambda one: list(DATASETS).index(one) if one in DATASETS else 99
    )
    if not sets:
        return None
    for label, (table, panel, metric_of) in parts.items():
        columns = {one: _measure(results, tasks[label], one, metric_of(one)) for one in sets}
        columns["average"] = _measure(results, "six-tasks", panel, "average")
        if not any(measure is not None for one, measure in columns.items() if one != "average"):
            continue
        rows += [[f"{row[0]}, {label}", *row[1:]] for row in _rows(results, columns)]
        if printed:
            rows += _printed_rows(table, sets, label)
    if not rows:
        return None
    heads = ["model", *(DATASETS.get(one, one) for one in sets), "average"]
    shown = pd.DataFrame(rows, columns=heads)
    shown = shown[[column for column in heads if column == "model" or shown[column].ne("–").any()]]
    return Table(name, title, shown, _note(printed))


def _pairs(results: Results, printed: bool) -> Table | None:
    """Make the numbers of Figure 4: right pairs by pattern."""
    frame = results.records
    own = frame[(frame["task"] == "mmvp") & frame["metric"].str.startswith("pair_accuracy")]
    if own.empty:
        return None
    rows = []
    models = in_order(dict.fromkeys(own["model"]))
    ordered = sorted(own.groupby(["dataset", "metric"], sort=False), key=lambda item: "/" not in item[0][1])
    for (dataset, metric), part in ordered:
        means = part.groupby("model")["value"].mean()
        label = metric.partition("/")[2] or "all pairs"
        counts = f"{int(part['count'].iloc[0]):,}"
        rows.append(
            [f"{label} ({DATASETS.get(dataset, dataset)})", counts, *(percent(means.get(m)) for m in models)]
        )
    note = "Chance is 25 %."
    numbers = paper_numbers()["pairs"]
    if printed and (own["dataset"] == "mmvp").any():
        right = {row["model"]: row["right"] for row in numbers["rows"]}
        shown = [percent(right[m] / numbers["pairs"]) if m in right else "–" for m in map(variant_of, models)]
        rows.append([f"seven patterns, {numbers['pretraining']} (paper)", str(numbers["pairs"]), *shown])
        test = compare_counts(right[TREATED], numbers["pairs"], right[BASELINE], numbers["pairs"])
        note += (
            f" The paper's difference: {interval(test.low, test.high, sign=True)} points, p = {test.p:.2f}."
        )
    return Table(
        "minimal_pairs",
        "Minimal pairs: right pairs (%)",
        pd.DataFrame(rows, columns=["pattern", "pairs", *models]),
        note,
    )


def _pope(results: Results, printed: bool) -> Table | None:
    """Make Table 3: POPE by file."""
    own = results.records[results.records["task"] == "pope"]
    if own.empty:
        return None
    metrics = ("accuracy", "precision", "recall", "f1", "yes_ratio")
    rows = []
    for (dataset, split), part in own.groupby(["dataset", "split"], sort=False):
        means = part.pivot_table(index="model", columns="metric", values="value", aggfunc="mean")
        for model in in_order(means.index):
            cells = [percent(means.loc[model].get(metric)) for metric in metrics]
            rows.append([f"{model}, {DATASETS.get(dataset, dataset)} {split}", *cells])
    if printed:
        for row in paper_numbers()["answers"]["rows"]:
            f1 = 2 * row["precision"] * row["recall"] / (row["precision"] + row["recall"])
            cells = [f"{value:.1f}" for value in (row["accuracy"], row["precision"], row["recall"], f1)]
            rows.append([f"{row['model']}, CC12M, {row['split']} (paper)", *cells, "–"])
    heads = ["model and file", "accuracy", "precision", "recall", "F1", "answers yes"]
    return Table("pope", "POPE (%)", pd.DataFrame(rows, columns=heads), _note(printed))


def _spread(results: Results, task: str, name: str, title: str, printed: bool) -> Table | None:
    """Make Tables 4 and 5: mean ± standard deviation over the draws of an evaluation, by set."""
    frame = results.records[(results.records["task"] == task) & results.records["draw"].notna()]
    rows: dict[str, dict[str, str]] = {}
    sets: list[str] = []
    for dataset, part in frame.groupby("dataset", sort=False):
        metric = "mean_per_class_recall" if task == "linear-probe" and dataset in PER_CLASS else "acc1"
        own = part[part["metric"] == metric]
        spread = own.groupby(["model", "seed"], dropna=False)["value"].agg(["mean", "std", "count"])
        if own.empty or spread["count"].max() < 2:
            continue
        sets.append(str(dataset))
        for model, group in spread.groupby("model"):
            text = f"{100 * group['mean'].mean():.1f} ± {100 * group['std'].mean():.1f}"
            rows.setdefault(str(model), {})[str(dataset)] = text
    if not rows:
        return None
    sets.sort(key=lambda one: list(DATASETS).index(one) if one in DATASETS else 99)
    lines = [[model, *(rows[model].get(one, "–") for one in sets)] for model in in_order(rows)]
    if printed:
        table = printed_table(f"{task}-seeds")
        for row in table["rows"]:
            cells = []
            for one in sets:
                at = table["sets"].index(one) if one in table["sets"] else None
                cells.append("–" if at is None else f"{row['values'][at]:.1f} ± {row['sds'][at]:.1f}")
            if any(cell != "–" for cell in cells):
                lines.append([f"{row['model']}, {row['pretraining']} (paper)", *cells])
    heads = ["model", *(DATASETS.get(one, one) for one in sets)]
    note = "Standard deviation over repetitions of the evaluation of one model, as in the paper's Appendix B."
    return Table(name, f"{title} (%)", pd.DataFrame(lines, columns=heads), note)


def _measure(results: Results, task: str, dataset: str, metric: str) -> int | None:
    """Find a measure; where there are several of that name, the one that most models have."""
    frame = results.records
    own = frame[(frame["task"] == task) & (frame["dataset"] == dataset) & (frame["metric"] == metric)]
    own = own[own["corruption"].isna()]
    return None if own.empty else int(own.groupby("measure")["model"].nunique().idxmax())


def _rows(results: Results, columns: dict[str, int | None]) -> list[list[str]]:
    """Write a row a model: the value of each measure, and in brackets its difference to CLIP."""
    values = values_of(results.records)
    means = values.groupby(["measure", "model"])["value"].mean()
    shown = values[values["measure"].isin([one for one in columns.values() if one is not None])]
    models = in_order(dict.fromkeys(shown["model"]))
    base = next((model for model in models if variant_of(model) == BASELINE), None)
    rows = []
    for model in models:
        cells = []
        for measure in columns.values():
            value = means.get((measure, model)) if measure is not None else None
            other = means.get((measure, base)) if measure is not None and model != base else None
            gain = None if value is None or other is None else 100 * (value - other)
            cells.append(_cell(None if value is None else 100 * value, gain))
        rows.append([model, *cells])
    return rows


def _printed_rows(name: str, sets: Sequence[str], label: str) -> list[list[str]]:
    """Write the paper's rows for these sets, with its average where all of its sets are shown."""
    table = printed_table(name)
    rows = []
    for row in table["rows"]:
        cells = []
        for one in sets:
            at = table["sets"].index(one) if one in table["sets"] else None
            gain = row["gains"][at] if at is not None and row.get("gains") else None
            cells.append(_cell(None if at is None else row["values"][at], gain))
        whole = set(table["sets"]) <= set(sets)
        average = _cell(row.get("average"), row.get("average_gain")) if whole else "–"
        if any(cell != "–" for cell in cells):
            rows.append([f"{row['model']}, {row['pretraining']}, {label} (paper)", *cells, average])
    return rows


def _paper_rows() -> list[tuple[str, str]]:
    """List the paper's models with their pretraining."""
    rows = [(row["model"], row["pretraining"]) for row in printed_table("linear-probe")["rows"]]
    return list(
        dict.fromkeys([*rows, *((one["model"], one["pretraining"]) for one in paper_numbers()["statements"])])
    )


def _printed_average(name: str, model: str, pretraining: str) -> float | None:
    for row in printed_table(name)["rows"]:
        if (row["model"], row["pretraining"]) == (model, pretraining):
            return float(row.get("average", row["values"][0]))
    return None


def _cell(value: float | None, gain: float | None = None) -> str:
    """Write a value in percent with a gain in points: "76.2 (+3.7)"."""
    text = "–" if value is None or pd.isna(value) else f"{value:.1f}"
    if gain is None or pd.isna(gain):
        return text
    return f"{'' if text == '–' else f'{text} '}({percent(gain / 100, sign=True)})"


def _note(printed: bool) -> str:
    note = "In brackets the difference to CLIP in points; whether it is real is in the first table."
    if printed:
        numbers = paper_numbers()
        note += f" Rows marked (paper): {numbers['paper']}; {numbers['architecture']}, other data and sets than here."
    return note
