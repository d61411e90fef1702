"""Records as tables, for Markdown and for HTML: a table a task, a row a model and seed, a column a metric."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from diffclip.report.compare import (
    ENOUGH_SEEDS,
    Comparison,
    Estimate,
    Measure,
    by_series,
    compare,
    estimate,
    measure_of,
)
from diffclip.report.metrics import chance_of, chance_text, metric_name, percentage, points
from diffclip.report.series import Collection, Result, Series, usual_init

RowKind = Literal["chance", "one", "seed", "mean", "difference"]


@dataclass(frozen=True)
class Row:
    """`cells` begin with what the row is about. `kind` says how it is set."""

    kind: RowKind
    cells: list[str]


@dataclass(frozen=True)
class Table:
    """`columns` begin with the head of the first column; `notes` are whole sentences."""

    title: str
    columns: list[str]
    rows: list[Row]
    notes: list[str]
    numeric: bool = True


def result_tables(collection: Collection, every_seed: bool = True) -> list[Table]:
    """A table for each task, set, split and protocol: values, intervals, means, differences to CLIP, chance.

    Args:
        collection: what to tabulate.
        every_seed: give each seed a row also where there is a row for their mean.
    """
    comparisons = compare(collection)
    groups: dict[Measure, list[Measure]] = {}
    for measure in dict.fromkeys(measure_of(result) for result in collection.results):
        groups.setdefault(measure._replace(metric=""), []).append(measure)
    return [
        _table(collection, group, measures, comparisons, every_seed) for group, measures in groups.items()
    ]


def to_markdown(table: Table) -> str:
    """The table as GitHub's Markdown, its title in bold above it and its notes beneath."""
    lines = [f"**{_escaped(table.title)}**", ""]
    lines.append("| " + " | ".join(map(_escaped, table.columns)) + " |")
    lines.append("| --- |" + (" ---: |" if table.numeric else " --- |") * (len(table.columns) - 1))
    for row in table.rows:
        cells = [_escaped(cell) for cell in row.cells]
        if row.kind in ("mean", "one"):
            cells[0] = f"**{cells[0]}**"
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", " ".join(table.notes), ""])


def to_html(table: Table) -> str:
    """The table as an HTML figure that scrolls sideways where it is too wide."""
    head = "".join(f"<th scope=col>{html.escape(column)}</th>" for column in table.columns)
    body = []
    for row in table.rows:
        first, *cells = (html.escape(cell) for cell in row.cells)
        values = "".join(f"<td>{_two_lines(cell)}</td>" for cell in cells)
        body.append(f'<tr class="{row.kind}"><th scope=row>{first}</th>{values}</tr>')
    kind = "numbers" if table.numeric else "words"
    return (
        f'<figure class="table"><figcaption class="title">{html.escape(table.title)}</figcaption>'
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        f"<figcaption>{html.escape(' '.join(table.notes))}</figcaption></figure>"
    )


def _table(
    collection: Collection,
    group: Measure,
    measures: Sequence[Measure],
    comparisons: Sequence[Comparison],
    every_seed: bool,
) -> Table:
    found = {measure: by_series(collection.results, measure) for measure in measures}
    rows = []
    for series in collection.series:
        seeds = {seed for measure in measures for seed in found[measure].get(series, {})}
        if len(seeds) == 1 or every_seed:
            for seed in sorted(seeds, key=lambda seed: -1 if seed is None else seed):
                own = [found[measure].get(series, {}).get(seed) for measure in measures]
                name = series.label if seed is None else f"{series.label}, seed {seed}"
                rows.append(Row("seed" if len(seeds) > 1 else "one", [name, *map(_value, own)]))
        if len(seeds) > 1:
            means = [found[measure].get(series) for measure in measures]
            cells = [_mean(estimate(own)) if own else "–" for own in means]
            rows.append(Row("mean", [f"{series.label}, mean of {len(seeds)} seeds", *cells]))
    rows += _difference_rows(collection, measures, comparisons)
    chances = [chance_of(measure, collection.results) for measure in measures]
    if any(chance is not None for chance in chances):
        rows.append(Row("chance", ["chance", *map(chance_text, chances)]))
    return Table(
        title=f"{group.task.replace('_', ' ').capitalize()} on {group.dataset}, {group.split} split",
        columns=["model", *(_head(measure, collection.results) for measure in measures)],
        rows=rows,
        notes=_notes(collection, found, [one for one in comparisons if one.measure in measures], every_seed),
    )


def _head(measure: Measure, results: Sequence[Result]) -> str:
    counts = sorted({result.record.count for result in results if measure_of(result) == measure})
    return f"{metric_name(measure.metric)} (n = {', '.join(f'{count:,}' for count in counts)})"


def _value(result: Result | None) -> str:
    if result is None or result.record.value is None:
        return "–"
    return _bracketed(percentage(result.value), result.record.low, result.record.high, ", ")


def _mean(mean: Estimate) -> str:
    return _bracketed(percentage(mean.mean), mean.low, mean.high, " to " if mean.n == 2 else ", ")


def _bracketed(text: str, low: float | None, high: float | None, between: str) -> str:
    return text if low is None or high is None else f"{text} [{100 * low:.1f}{between}{100 * high:.1f}]"


def _difference_rows(
    collection: Collection, measures: Sequence[Measure], comparisons: Sequence[Comparison]
) -> list[Row]:
    rows = []
    for series in collection.series:
        own = {one.measure: one for one in comparisons if one.series == series and one.measure in measures}
        if own:
            baseline = next(iter(own.values())).baseline
            cells = [points(own[measure].difference) if measure in own else "–" for measure in measures]
            rows.append(Row("difference", [f"{series.label} − {baseline.label} (points)", *cells]))
    return rows


def _notes(
    collection: Collection,
    found: dict[Measure, dict[Series, dict[int | None, Result]]],
    comparisons: Sequence[Comparison],
    every_seed: bool,
) -> list[str]:
    """What a reader needs to read one table, whose measures (of one protocol) are those of `found`."""
    notes = [f"Protocol: {next(iter(found)).protocol}."]
    shown = dict.fromkeys(series for own in found.values() for series in own)
    inits = [series.init for series in shown if series.init]
    if inits:
        unless = ", unless a model's name says otherwise" if len(set(inits)) > 1 else ""
        notes.append(f"Init: {usual_init(inits)}{unless}.")
    if collection.architecture:
        notes.append(f"Architecture of all models: {collection.architecture}.")
    sizes = {len(seeds) for own in found.values() for seeds in own.values()}
    if every_seed or 1 in sizes:
        notes.append("In brackets: 95 % interval of a single model, from sampling the test set.")
    pairs = {one.difference.n for one in comparisons}
    if any(size >= ENOUGH_SEEDS for size in sizes):
        notes.append("Of a mean: 95 % interval over training seeds (Student's t).")
    if 2 in sizes:
        notes.append(
            "Of a mean of two seeds: both values; two seeds are too few to tell a difference from luck."
        )
    if pairs:
        notes.append(
            "Differences are paired by seed."
            if max(pairs) > 1
            else "Differences are between one trained model each: "
            "their interval covers the test set, not the training seed."
        )
    return notes


def _two_lines(cell: str) -> str:
    """A value with its bracket in a smaller element of its own."""
    value, bracket, rest = cell.partition(" [")
    return f"{value} <span>[{rest}</span>" if bracket else value


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
