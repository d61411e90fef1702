"""Records as tables, for Markdown and for HTML: a table a task, a row a model and seed, a column a metric."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from diffclip.evaluation.averages import DERIVED, OUT_OF_DOMAIN, SIX_TASKS
from diffclip.evaluation.focus_names import is_share
from diffclip.evaluation.pope_names import POPE, is_blind
from diffclip.report.compare import (
    ENOUGH_SEEDS,
    Comparison,
    Measure,
    Seeds,
    by_series,
    estimate,
    measure_of,
)
from diffclip.report.focus_metrics import FOCUS, plain
from diffclip.report.metrics import (
    amount,
    chance_of,
    dataset_name,
    level_name,
    level_text,
    measure_name,
    metric_name,
    tested_points,
    worth_averaging,
)
from diffclip.report.series import Collection, Measured, Series, inits_of, usual_init
from diffclip.report.told import comparisons_of, correction_of

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

    The averages over six tasks are one table, the first, left out where they are no fewer than what they stand for.
    The p of the differences are those of `told.comparisons_of`, the same as in the figures. Where models look is in
    tables of its own, see `focus_tables`, and so are answers to questions, see `pope_section`.

    Args:
        collection: what to tabulate.
        every_seed: give each seed a row also where there is a row for their mean.
    """
    measures = list(dict.fromkeys(measure_of(result) for result in collection.results))
    groups: dict[Measure, list[Measure]] = {}
    if worth_averaging(measures):
        averages = [measure for measure in measures if measure.task == SIX_TASKS]
        groups[averages[0]] = averages
    for measure in measures:
        if measure.task not in (SIX_TASKS, FOCUS, POPE):
            groups.setdefault(_group(measure), []).append(measure)
    return [table_of_results(collection, measures, every_seed) for measures in groups.values()]


def table_of_results(collection: Collection, measures: Sequence[Measure], every_seed: bool) -> Table:
    """The table of some measures of one task and set."""
    found = {measure: by_series(collection.results, measure) for measure in measures}
    comparisons = comparisons_of(collection, measures)
    heads = [head_of(measure, own) for measure, own in found.items()]
    return table_of(collection, found, comparisons, title_of(measures[0]), heads, every_seed)


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


def table_of(
    collection: Collection,
    found: Mapping[Measure, Mapping[Series, Seeds]],
    comparisons: Sequence[Comparison],
    title: str,
    heads: Sequence[str],
    every_seed: bool,
) -> Table:
    """A table with a column for each measure of `found`, headed by `heads`: models, differences, chance."""
    measures = list(found)
    rows = []
    for series in collection.series:
        seeds = {seed for own in found.values() for seed in own.get(series, {})}
        if len(seeds) == 1 or every_seed:
            for seed in sorted(seeds, key=lambda seed: -1 if seed is None else seed):
                cells = [_value(one, found[one].get(series, {}).get(seed)) for one in measures]
                name = series.label if seed is None else f"{series.label}, seed {seed}"
                rows.append(Row("seed" if len(seeds) > 1 else "one", [name, *cells]))
        if len(seeds) > 1:
            cells = [_mean(one, found[one].get(series)) for one in measures]
            rows.append(Row("mean", [f"{series.label}, mean of {len(seeds)} seeds", *cells]))
    rows += _difference_rows(collection, measures, comparisons)
    chances = [chance_of(measure, collection.results) for measure in measures]
    if any(chance is not None for chance in chances):
        levels = [level_text(one, chance) for one, chance in zip(measures, chances, strict=True)]
        rows.append(Row("chance", [level_name(measures[0]), *levels]))
    return Table(
        title=title,
        columns=["model", *heads],
        rows=rows,
        notes=_notes(collection, found, comparisons, every_seed),
    )


def head_of(measure: Measure, found: Mapping[Series, Seeds]) -> str:
    """A column's head, with over how many items its numbers are."""
    records = [record for seeds in found.values() for one in seeds.values() for record in one.records]
    name = measure_name(measure) if measure.task == SIX_TASKS else metric_name(measure.metric)
    return f"{name} (n = {', '.join(f'{count:,}' for count in sorted({one.count for one in records}))})"


def _group(measure: Measure) -> Measure:
    """Equal for what a table holds: metrics of one protocol, or of one set's shifts (corrupted copies apart)."""
    if measure.task == OUT_OF_DOMAIN:
        return measure._replace(metric="", protocol="corrupted" if "+" in measure.protocol else "")
    return measure._replace(metric="")


def title_of(measure: Measure) -> str:
    """The title of the table of a measure and the others of its kind."""
    if measure.task == SIX_TASKS:
        return "Six tasks, each the mean over its sets"
    task = measure.task.replace("_", " ")
    if measure.task == POPE:
        without = ", without the picture" if is_blind(measure.protocol) else ""
        return f"POPE on {dataset_name(measure.dataset)}, {measure.split}{without}"
    return f"{task[0].upper()}{task[1:]} on {dataset_name(measure.dataset)}, {measure.split} split"


def _value(measure: Measure, one: Measured | None) -> str:
    if one is None:
        return "–"
    return _bracketed(measure.metric, _spread(measure.metric, one.value, one.sd), one.low, one.high, ", ")


def _mean(measure: Measure, seeds: Seeds | None) -> str:
    if not seeds:
        return "–"
    mean = estimate(seeds)
    text = _spread(measure.metric, mean.mean, mean.sd)
    return _bracketed(measure.metric, text, mean.low, mean.high, " to " if mean.n == 2 else ", ")


def _spread(metric: str, mean: float, sd: float | None) -> str:
    """A mean as "71.2 ± 0.4 %" where there is a standard deviation."""
    if sd is None:
        return amount(metric, mean)
    return f"{plain(mean, metric)} ± {plain(sd, metric)}{' %' * is_share(metric)}"


def _bracketed(metric: str, text: str, low: float | None, high: float | None, between: str) -> str:
    if low is None or high is None:
        return text
    return f"{text} [{plain(low, metric)}{between}{plain(high, metric)}]"


def _difference_rows(
    collection: Collection, measures: Sequence[Measure], comparisons: Sequence[Comparison]
) -> list[Row]:
    rows = []
    pairs = dict.fromkeys((one.series, one.baseline) for one in comparisons)
    for series, baseline in sorted(pairs, key=lambda pair: collection.series.index(pair[0])):
        own = {one.measure: one for one in comparisons if (one.series, one.baseline) == (series, baseline)}
        if own:
            cells = [tested_points(own[measure]) if measure in own else "–" for measure in measures]
            unit = " (points)" * any(is_share(measure.metric) for measure in measures)
            rows.append(Row("difference", [f"{series.label} − {baseline.label}{unit}", *cells]))
    return rows


def _notes(
    collection: Collection,
    found: Mapping[Measure, Mapping[Series, Seeds]],
    comparisons: Sequence[Comparison],
    every_seed: bool,
) -> list[str]:
    """What a reader needs to read one table, whose measures are those of `found`."""
    first = next(iter(found))
    notes = [f"Protocol: {first.protocol}."]
    if first.task in DERIVED:
        names = {one: measure_name(one) for one in found}
        notes = [f"{name[0].upper()}{name[1:]}: {one.protocol}." for one, name in names.items()]
    shown = dict.fromkeys(series for own in found.values() for series in own)
    inits = inits_of(shown)
    if inits:
        unless = ", unless a model's name says otherwise" if len(set(inits)) > 1 else ""
        notes.append(f"Init: {usual_init(inits)}{unless}.")
    if collection.architecture:
        notes.append(f"Architecture of all models: {collection.architecture}.")
    sizes = {len(seeds) for own in found.values() for seeds in own.values()}
    if every_seed or 1 in sizes:
        notes.append("In brackets: 95 % interval of a single model, from sampling the test set.")
    draws = sorted({one.draws for own in found.values() for seeds in own.values() for one in seeds.values()})
    repeated = [str(number) for number in draws if number > 1]
    if repeated and (every_seed or 1 in sizes):
        notes.append(
            f"Of a single model, ±: standard deviation over {' or '.join(repeated)} draws of the task."
        )
    if max(sizes, default=1) > 1:
        notes.append("Of a mean, ±: standard deviation over training seeds.")
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
    tested = correction_of(collection, comparisons)
    notes += [tested] if tested else []
    shares = [one for one in comparisons if is_share(one.measure.metric)]
    detectable = sorted(100 * one.detectable for one in shares if one.detectable is not None)
    if detectable:
        between = f"{detectable[0]:.1f}" + (f" to {detectable[-1]:.1f}" if len(detectable) > 1 else "")
        notes.append(
            f"So many seeds find a true difference of {between} points in 80 % of all cases, uncorrected."
        )
    return notes


def _two_lines(cell: str) -> str:
    """A value with its bracket in a smaller element of its own."""
    value, bracket, rest = cell.partition(" [")
    return f"{value} <span>[{rest}</span>" if bracket else value


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
