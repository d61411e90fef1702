"""The results of `diffclip evaluate` as a table: a row a measure, a column a model, or a block a model if too wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from diffclip.cli.console import table_console
from diffclip.evaluation.records import Record
from diffclip.evaluation.results_file import Outcomes, outcome_key, same_items
from diffclip.evaluation.statistics import compare_two_trained_weights
from diffclip.report.compare import ONE_RUN, compare, contrasts_of, verdict_text
from diffclip.report.frame import Results, headlines, in_order, is_share, measures_of, percent, results_of

if TYPE_CHECKING:
    from rich.table import Table


def show_records(records: Sequence[Record], outcomes: Mapping[str, Outcomes], headlines_only: bool) -> None:
    """Print a table of the models' values.

    Several training seeds of a model: mean ± standard deviation, and a verdict a model against CLIP. One seed: the
    value ± half of its 95 % interval over items; two models are then compared item by item if they are of one set.
    """
    frame = pd.DataFrame([record.model_dump() for record in records], columns=list(Record.model_fields))
    results = results_of(frame)
    plain = results.records[results.records["layer"].isna()]
    measures = headlines(results.records) if headlines_only else list(plain["measure"].unique())
    columns = {model: _column(results, model, measures) for model in results.models}
    notes = ["In %, ± half of the 95 % interval over items."]
    if results.seeds > 1:
        notes = [f"Mean ± standard deviation over seeds, in % ({results.seeds} seeds)."]
        compared = compare(results, measures, contrasts_of(results))
        for model in dict.fromkeys(compared["model"]) if len(compared) else ():
            own = compared[compared["model"] == model].set_index("measure")
            columns[f"{model} is"] = [
                verdict_text(own.loc[one]) if one in own.index else "" for one in measures
            ]
        if len(compared):
            notes.append("Verdicts: against CLIP over seeds, corrected (Holm).")
    elif len(results.models) > 1:
        notes.append(ONE_RUN)
        if not headlines_only and (differences := _differences(records, outcomes)):
            columns["difference"] = [differences.get(metric, "") for metric in _labels(results, measures)]
            notes.append("Difference: of these two trained weights over items, with its 95 % interval.")
    console = table_console()
    rows, chances = _labels(results, measures), _chances(results, measures)
    least = 28 + sum(max(len(name), *map(len, cells)) + 2 for name, cells in columns.items())
    blocks = [columns] if least <= console.width else [{name: cells} for name, cells in columns.items()]
    for block in blocks:
        console.print(_table(rows, chances, block))
    console.print(" ".join(notes), highlight=False, style="dim")


def _labels(results: Results, measures: Sequence[int]) -> list[str]:
    return list(measures_of(results.records).loc[list(measures), "label"])


def _chances(results: Results, measures: Sequence[int]) -> list[str]:
    fields = measures_of(results.records)
    return [percent(fields.loc[one, "chance"], is_share(fields.loc[one].to_dict())) for one in measures]


def _column(results: Results, model: str, measures: Sequence[int]) -> list[str]:
    own = results.records[results.records["model"] == model]
    cells = []
    for measure in measures:
        rows = own[own["measure"] == measure]
        if rows.empty:
            cells.append("–")
            continue
        share = is_share(rows.iloc[0].to_dict())
        seeds = rows.groupby("seed", dropna=False)["value"].mean()
        half = (rows["high"] - rows["low"]).mean() / 2
        spread = percent(seeds.std() if len(seeds) > 1 else half, share)
        cells.append(f"{percent(seeds.mean(), share)} ± {spread}")
    return cells


def _differences(records: Sequence[Record], outcomes: Mapping[str, Outcomes]) -> dict[str, str]:
    """Return the second model of the table minus the first, with its interval, by measure; of the same items only."""
    pairs = dict.fromkeys((record.model, record.weights) for record in records)
    order = in_order(model for model, _ in pairs)
    weights = sorted(pairs, key=lambda pair: order.index(pair[0]))
    if len(weights) != 2:
        return {}
    found = {}
    first, second = (
        {_measure(one): one for one in records if (one.model, one.weights) == own} for own in weights
    )
    for label in first.keys() & second.keys():
        own, base = (outcomes.get(outcome_key(model[label])) for model in (second, first))
        if own is None or base is None or not same_items(own, base):
            continue
        test = compare_two_trained_weights(own.hits, base.hits, own.clusters)
        share = is_share(second[label].model_dump())
        low, high = percent(test.low, share, sign=True), percent(test.high, share, sign=True)
        found[label] = f"{percent(test.difference, share, sign=True)} [{low}, {high}]"
    return found


def _measure(record: Record) -> str:
    from diffclip.report.frame import measure_label

    return measure_label(record.model_dump())


def _table(rows: Sequence[str], chances: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("measure", min_width=20)
    table.add_column("chance", justify="right", min_width=6)
    for name, cells in columns.items():  # a long name may break, a value may not
        table.add_column(Text(name, overflow="fold"), justify="right", min_width=max(8, *map(len, cells)))
    for number, (row, chance) in enumerate(zip(rows, chances, strict=True)):
        table.add_row(Text(row), chance, *(Text(cells[number]) for cells in columns.values()))
    return table
