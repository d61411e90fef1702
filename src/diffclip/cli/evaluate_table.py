"""The results of `diffclip evaluate` as a table: a row per measure and a column per model."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from diffclip.cli.console import print_table, table_console
from diffclip.evaluation.records import Record, records_table
from diffclip.report.compare import ONE_RUN, baselines_of, cautions, is_tested, verdict_text
from diffclip.report.frame import headlines, results_of
from diffclip.report.tables import values_table

_TASK, _VERDICT = 20, 16
"""Column widths, in characters, for a task's name and for a verdict. Both texts may wrap between words."""
_MOST = 30
"""Measures that a table of one task shows at most. If there are more, it shows only the headlines."""


def show_records(records: Sequence[Record], headlines_only: bool) -> None:
    """Print the models' values side by side, or in a block per model if that is too wide for the terminal.

    With several training seeds, print the mean, and the verdicts of `diffclip report`. With one seed, print values with
    their intervals over items.
    """
    results = results_of(records_table(records))
    plain = results.records[results.records["layer"].isna()]
    measures = list(plain["measure"].unique())
    if headlines_only or len(measures) > _MOST:
        # two models may have an average that a third one lacks
        compared = results.verdicts.get("measure", ())
        measures = list(dict.fromkeys([*compared, *headlines(results.records)]))
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
    groups = [[name for name in (model, f"{model} is") if name in table] for model in results.models]
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
