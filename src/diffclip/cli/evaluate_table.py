"""The results of `diffclip evaluate` as a table: a row per measure and a column per model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from diffclip.cli.console import print_table, table_console
from diffclip.evaluation.records import Record, records_table
from diffclip.evaluation.results_file import Outcomes, outcome_key, same_items
from diffclip.evaluation.statistics import mean_interval
from diffclip.report.compare import ONE_RUN, baselines_of, cautions, is_tested, verdict_text
from diffclip.report.frame import Results, headlines, results_of
from diffclip.report.names import interval, is_share, percent
from diffclip.report.tables import values_table

_TASK, _VERDICT = 20, 16
"""Column widths, in characters, for a task's name and for a verdict. Both texts may wrap between words."""
_MOST = 30
"""Measures that a table of one task shows at most. If there are more, it shows only the headlines."""


def show_records(records: Sequence[Record], outcomes: Mapping[str, Outcomes], headlines_only: bool) -> None:
    """Print the models' values side by side, or in a block per model if that is too wide for the terminal.

    With several training seeds, print the mean, and the verdicts of `diffclip report`. With one seed, print values with
    their intervals over items, and compare two models item by item if they were measured on the same items.
    """
    results = results_of(records_table(records).assign(place=range(len(records))))
    plain = results.records[results.records["layer"].isna()]
    measures = list(plain["measure"].unique())
    if headlines_only or len(measures) > _MOST:
        measures = headlines(results.records)
    tested = is_tested(results.verdicts)
    table = values_table(results, measures, "", intervals=not tested).frame
    several = results.has_several_seeds
    caption = ["Shares in %", *(["mean over seeds"] if several else [])]
    caption += [] if tested else ["with the 95 % interval over items"]
    notes = [", ".join(caption) + ".", *cautions(results)]
    if hidden := plain["measure"].nunique() - len(measures):
        notes.append(f"{hidden} more measures are in the results (diffclip report shows all).")
    if tested:
        for model, rows in results.verdicts.groupby("arm", sort=False):
            verdicts = {row["measure"]: verdict_text(row) for _, row in rows.iterrows()}
            table[f"{model} is"] = [verdicts.get(measure, "") for measure in measures]
        baselines = baselines_of(results.verdicts)
        notes.append(f"Verdicts: headlines against {baselines}, t test over runs, corrected (Holm).")
    elif len(results.models) > 1 and not several:
        notes.append(ONE_RUN)
        record_outcomes = [outcomes.get(outcome_key(record)) for record in records]
        if not headlines_only and (differences := _differences(results, record_outcomes)):
            table["difference"] = [differences.get(measure, "") for measure in measures]
            notes.append("Difference: of these two trained weights over items, with its 95 % interval.")
    groups = [[name for name in (model, f"{model} is") if name in table] for model in results.models]
    groups += [["difference"]] if "difference" in table else []
    columns = [name for group in groups for name in group]
    console = table_console()
    for block in [columns] if _width(table[["chance", *columns]]) <= console.width else groups:
        part = table[["task", "chance", *block]]
        print_table(list(part), "l" + "r" * (part.shape[1] - 1), part.itertuples(index=False))
    console.print(" ".join(notes), highlight=False)


def _width(columns: pd.DataFrame) -> int:
    """Return the width, in characters, at which a table of tasks with these columns wraps no number."""
    longest = {name: max(map(len, (name, *cells))) for name, cells in columns.items()}
    widths = (
        min(letters, _VERDICT) if name.endswith(" is") else letters for name, letters in longest.items()
    )
    return _TASK + sum(letters + 3 for letters in widths)


def _differences(results: Results, outcomes: Sequence[Outcomes | None]) -> dict[int, str]:
    """Return by measure the second of two models minus the first, with its interval, if both have the same items.

    `outcomes` has an entry per record; all draws of a model count together.
    """
    if len(results.models) != 2:
        return {}
    texts = {}
    for measure, rows in results.records.groupby("measure"):
        rows = rows.sort_values("draw", kind="stable")
        base, other = (
            _join_draws([outcomes[i] for i in rows["place"][rows["model"] == model]])
            for model in results.models
        )
        if base is not None and other is not None and same_items(base, other):
            differences, share = other.hits - base.hits, is_share(rows.iloc[0])
            bounds = interval(*mean_interval(differences, other.clusters, (-1.0, 1.0)), share, sign=True)
            texts[int(measure)] = f"{percent(differences.mean(), share, sign=True)} [{bounds}]"
    return texts


def _join_draws(draws: Sequence[Outcomes | None]) -> Outcomes | None:
    known = [draw for draw in draws if draw is not None]
    if not known or len(known) < len(draws):
        return None
    if len(known) == 1:
        return known[0]
    items = [np.arange(len(draw.hits)) if draw.clusters is None else draw.clusters for draw in known]
    return Outcomes(np.concatenate([draw.hits for draw in known]), np.concatenate(items))
