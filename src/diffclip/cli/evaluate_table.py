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
from diffclip.report.frame import (
    headlines,
    in_order,
    interval,
    is_share,
    measure_label,
    measures_of,
    percent,
    results_of,
    values_of,
)

if TYPE_CHECKING:
    from rich.table import Table

_VALUE = 24
"""Letters of the longest value; longer cells are words, which may break."""


def show_records(records: Sequence[Record], outcomes: Mapping[str, Outcomes], headlines_only: bool) -> None:
    """Print a table of the models' values.

    Several training seeds of a model: mean ± standard deviation, and a verdict a model against CLIP. One seed: the
    value ± half of its 95 % interval over items; two models are then compared item by item if they are of one set.
    """
    frame = pd.DataFrame([record.model_dump() for record in records], columns=list(Record.model_fields))
    results = results_of(frame)
    plain = results.records[results.records["layer"].isna()]
    measures = headlines(results.records) if headlines_only else list(plain["measure"].unique())
    fields = measures_of(results.records).loc[measures]
    shares = [is_share(row) for row in fields.to_dict("records")]
    columns = {"chance": [percent(one, share) for one, share in zip(fields["chance"], shares, strict=True)]}
    values = values_of(results.records)
    models = {model: _column(values[values["model"] == model], measures, shares) for model in results.models}
    notes = ["In %, ± half of the 95 % interval over items."]
    if results.seeds > 1:
        notes = [f"Mean ± standard deviation over seeds, in % ({results.seeds} seeds)."]
        compared = compare(results, measures, contrasts_of(results))
        for model, own in compared.groupby("model", sort=False) if len(compared) else ():
            words = {row["measure"]: verdict_text(row) for _, row in own.iterrows()}
            models[f"{model} is"] = [words.get(one, "") for one in measures]
        if len(compared):
            notes.append("Verdicts: against CLIP over seeds, corrected (Holm).")
    elif len(results.models) > 1:
        notes.append(ONE_RUN)
        if not headlines_only and (differences := _differences(records, outcomes)):
            models["difference"] = [differences.get(label, "") for label in fields["label"]]
            notes.append("Difference: of these two trained weights over items, with its 95 % interval.")
    console, labels = table_console(), list(fields["label"])
    tables = [_table(labels, columns | models)]
    anywhere = console.options.update(width=1000)
    if console.measure(tables[0], options=anywhere).minimum > console.width:
        tables = [_table(labels, columns | {name: cells}) for name, cells in models.items()]
    for table in tables:
        console.print(table)
    console.print(" ".join(notes), highlight=False, style="dim")


def _column(values: pd.DataFrame, measures: Sequence[int], shares: Sequence[bool]) -> list[str]:
    """Write a model's values: mean ± standard deviation over seeds, or ± half of the interval of one."""
    cells = []
    for measure, share in zip(measures, shares, strict=True):
        rows = values[values["measure"] == measure]
        half = (rows["high"] - rows["low"]).mean() / 2
        spread = percent(rows["value"].std() if len(rows) > 1 else half, share)
        cells.append(f"{percent(rows['value'].mean(), share)} ± {spread}" if len(rows) else "–")
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
        {measure_label(one.model_dump()): one for one in records if (one.model, one.weights) == own}
        for own in weights
    )
    for label in first.keys() & second.keys():
        own, base = (outcomes.get(outcome_key(model[label])) for model in (second, first))
        if own is not None and base is not None and same_items(own, base):
            test = compare_two_trained_weights(own.hits, base.hits, own.clusters)
            share = is_share(second[label].model_dump())
            between = interval(test.low, test.high, share, sign=True)
            found[label] = f"{percent(test.difference, share, sign=True)} [{between}]"
    return found


def _table(rows: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("measure", min_width=20)
    for name, cells in columns.items():  # a long name may break, and words may, but no value
        width = max(min(len(name), 8), *(min(len(cell), _VALUE) for cell in cells))
        table.add_column(Text(name, overflow="fold"), justify="right", min_width=width)
    for number, row in enumerate(rows):
        table.add_row(Text(row), *(Text(cells[number]) for cells in columns.values()))
    return table
