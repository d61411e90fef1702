"""Tables of strings: verdicts, values, maps, runs. A table is one text everywhere: Markdown and LaTeX are written here,
HTML by the page's template, and the terminal prints the same cells."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from diffclip.report.compare import contrast_of, runs_text, verdict_class, verdict_text
from diffclip.report.frame import Results, measures_of, values_of
from diffclip.report.labels import TASK_LABELS, in_order, interval, is_share, p_text, percent
from diffclip.report.printed import format_gain, paper_gains, paper_key

_LATEX_ESCAPES = str.maketrans(
    {sign: rf"\{sign}" for sign in "%&_#${}"} | {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"}
)
_LATEX = {
    "−": "$-$",
    "–": "--",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "λ": r"$\lambda$",
    "ε": r"$\varepsilon$",
    "×": r"$\times$",
}
VALUES = "Means over runs and draws, shares in percent. In brackets: 95 % interval over the test items."
WITH_MAPS = ("focus", "faithfulness")
BY_MAP = ("auroc", "insertion_auc", "deletion_auc")
"""Measures of focus and faithfulness that a report shows map by map."""
MAX_COLUMNS = 6  # models side by side in a table of values


@dataclass(frozen=True)
class Table:
    """Strings in columns, the first of which names the row; `classes` color the verdict of each row."""

    name: str
    title: str
    frame: pd.DataFrame
    note: str = ""
    classes: list[str] = field(default_factory=list)

    def to_markdown(self) -> str:
        """Return a Markdown table without title and note; all columns but the first are right-aligned."""
        rule = ["---", *["---:"] * (self.frame.shape[1] - 1)]
        rows = [list(self.frame), rule, *self.frame.to_numpy().tolist()]
        cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)
        return "\n".join(f"| {' | '.join(row)} |" for row in cells)

    def to_latex(self) -> str:
        r"""Return a LaTeX `table` in booktabs style (the preamble needs `\usepackage{booktabs}`)."""
        styled = self.frame.style.hide(axis="index").format(escape="latex")
        styled = styled.format_index(escape="latex", axis=1)
        text: str = styled.to_latex(
            column_format="l" + "r" * (self.frame.shape[1] - 1),
            hrules=True,
            caption=self.title.translate(_LATEX_ESCAPES),
            label=f"tab:{self.name}",
            position="tbp",
        )
        for sign, command in _LATEX.items():
            text = text.replace(sign, command)
        return text


def comparison_table(
    results: Results, verdicts: pd.DataFrame, title: str, name: str = "comparison", by: str = "label"
) -> Table:
    """Make a table of verdicts: values, difference, interval, p, runs and verdict, one row per comparison.

    Args:
        verdicts: rows of `results.verdicts`.
        by: "label" for one row per measure, "arm" for one row per arm with its costs.
    """
    one_pair = len(verdicts[["arm", "against"]].drop_duplicates()) == 1
    one_baseline = verdicts["against"].nunique() == 1
    gains, rows = paper_gains(), []
    for _, row in verdicts.iterrows():
        share = bool(row["share"])
        if by == "arm":
            cells = {"arm − baseline": contrast_of(row)}
        else:
            cells = {"measure": row["label"]}
            cells |= {} if one_pair else {"model": row["arm"] if one_baseline else contrast_of(row)}
        cells[row["arm"] if one_pair else "value"] = percent(row["value"], share)
        cells[row["against"] if one_baseline else "baseline"] = percent(row["value_against"], share)
        cells |= {"chance": percent(row["chance"], share)} if by == "label" else {}
        cells["difference"] = percent(row["difference"], share, sign=True)
        cells["95 % interval"] = interval(row["low"], row["high"], share, sign=True) or "–"
        cells["p"] = p_text(row["p_corrected"]) + (" (primary)" if row["primary"] else "")
        cells["runs"] = runs_text(row)
        cells |= _costs(results, row["arm"], row["against"]) if by == "arm" else {}
        if gain := gains.get(paper_key(row)):
            cells["paper"] = format_gain(gain)
        rows.append(cells | {"verdict": verdict_text(row)})
    table = pd.DataFrame(rows).fillna("–")
    table = table[[*table.columns.drop("verdict"), "verdict"]]
    classes = [verdict_class(row) for _, row in verdicts.iterrows()]
    note = _comparison_note(results, verdicts, "paper" in table, by)
    return Table(name, title, table, note, classes)


def _costs(results: Results, model: str, against: str) -> dict[str, str]:
    """Compare the parameters and the step time of a study's arms."""
    cells, parameters = {}, results.costs("parameters")
    times = {arm: own["ratio"] for arm, own in results.timing.items()} or results.costs("step_seconds")
    if {model, against} <= parameters.keys():
        share = 100 * (parameters[model] / parameters[against] - 1)
        cells["parameters"] = f"{share:+.3f} %".replace("-", "−")
    if {model, against} <= times.keys():
        cells["step time"] = f"{times[model] / times[against]:.2f}"
    return cells


def _comparison_note(results: Results, verdicts: pd.DataFrame, has_paper: bool, by: str) -> str:
    """Explain the numbers of a table of verdicts."""
    tests, shares = set(verdicts["test"].dropna()), verdicts["share"].astype(bool)
    words = {"paired": "a paired t test where runs are pairs", "welch": "Welch's t test over all runs"}
    words["pooled"] = "a t test over all runs with one variance"
    test = " and ".join(text for name, text in words.items() if name in tests)
    note = "Shares in percent, differences in points. " if shares.any() else ""
    # the rate of an arm that has several is chosen for each run without that run (`study/rates.py`)
    rated = {name.partition("@")[0] for name in results.models if "@" in name}
    is_chosen = verdicts[["arm", "against"]].isin(rated).any(axis=None)
    rates = ", a choice of their rates included" if is_chosen else " at the same rates"
    items = " and on the same test items"
    if verdicts["split"].eq("fold").any():
        items = ", on the test items of their folds (of a set without folds: on the same items)"
    note += f"Test: {test}, two-sided; intervals and p are about other training runs{rates}{items}. "
    note += f"p: corrected over {'the measures of a model' if results.spec is None else 'the declared family'} (Holm)"
    note += ", except the primary endpoint, tested at 5 %." if verdicts["primary"].any() else "."
    if verdicts["pooled"].any():
        note += " Pooled: one residual over all arms."
    if has_paper:
        note += " Paper: gain printed for ViT-B/16 on the same set, one training run per model."
    return note + (" Parameters and step time are relative to the baseline's." if by == "arm" else "")


def values_table(
    results: Results,
    measures: list[int],
    title: str,
    note: str = "",
    name: str = "values",
    intervals: bool = True,
) -> Table:
    """Make a table of values, with or without intervals over items: one row per measure, one column per model."""
    fields, values = measures_of(results.records), values_of(results.records)
    selected = values[values["measure"].isin(measures)]
    models = in_order(dict.fromkeys(selected["model"]))
    means = selected.groupby(["measure", "model"])[["value", "low", "high"]].mean()
    means = means.reindex(pd.MultiIndex.from_product([measures, models]))
    rows = []
    for measure in measures:
        share = is_share(fields.loc[measure])
        cells = [fields.loc[measure, "label"]]
        for value, low, high in means.loc[measure].itertuples(index=False):
            bounds = interval(low, high, share) if intervals else ""
            cells.append(percent(value, share) + (f" [{bounds}]" if bounds else ""))
        rows.append([*cells, percent(fields.loc[measure, "chance"], share)])
    return Table(name, title, pd.DataFrame(rows, columns=["task", *models, "chance"]), note)


def all_values(results: Results) -> list[Table]:
    """Make tables of every measure without layers and heads, one table per task, at most six models side by side."""
    frame = results.records[results.records["layer"].isna() & ~results.records["task"].eq("training")]
    tables = []
    for task, group in frame.groupby("task", sort=False):
        models = in_order(group["model"].unique())
        for start in range(0, len(models), MAX_COLUMNS):
            part = group[group["model"].isin(models[start : start + MAX_COLUMNS])]
            measures = list(part["measure"].unique())
            title = TASK_LABELS.get(str(task), str(task))
            tables.append(values_table(Results(part), measures, title, VALUES, f"values_{task}"))
    return tables


def maps_table(results: Results) -> Table | None:
    """Make a table of the maps of focus and faithfulness with their baselines, one row per measure and map."""
    frame = results.records
    rows = frame[frame["metric"].isin(BY_MAP) & frame["layer"].isna()]
    rows = rows[rows["task"].isin(WITH_MAPS)]
    ordered = rows.sort_values(["task", "dataset", "metric"], kind="stable", ascending=[False, True, True])
    measures = ordered["measure"].unique().tolist()
    note = f"{VALUES} Baselines: center prior, untrained, random order."
    return values_table(results, measures, "Maps and their baselines", note, "maps") if measures else None


def runs_table(results: Results) -> Table | None:
    """Make a table of a study's runs."""
    runs = results.runs
    if runs.empty:
        return None
    columns = {
        "run": runs["run"],
        "learning rate": runs["lr"].map("{:g}".format),
        "weight decay": runs["weight_decay"].map("{:g}".format),
        "score (%)": runs["score"].map(percent),
        "steps": runs["steps"].map("{:,.0f}".format),
        "minutes": (runs["seconds"] / 60).map("{:.1f}".format),
        "ended": ["–" if pd.isna(step) else f"diverged at step {step:.0f}" for step in runs["diverged"]],
    }
    return Table("runs", "Runs", pd.DataFrame(columns))
