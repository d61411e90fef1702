"""The rows that the paper prints, as rows of our tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from diffclip.evaluation.significance import compare_counts
from diffclip.report.paper import PaperRow, PaperTable, paper_numbers
from diffclip.report.series import Series
from diffclip.report.sheet import Cell, Line

PRINTED = "Rows marked (paper)"
"""How a note on the printed numbers begins."""


def printed_pairs(shown: Sequence[Series]) -> Line:
    numbers = paper_numbers().pairs
    printed = {row.model: row for row in numbers.rows}
    base = printed["CLIP"]
    cells = []
    for series in shown:
        row = printed.get(series.variant)
        if row is None:
            cells.append(Cell())
            continue
        text = f"{row.right} of {numbers.pairs}, {row.printed:.1f} %"
        gain = None if row is base else (row.right - base.right) / numbers.pairs
        cells.append(Cell(text, gain=gain))
    return Line(f"{numbers.patterns} patterns, {numbers.pretraining} (paper)", cells, ours=False)


def printed_pairs_note() -> str:
    numbers = paper_numbers().pairs
    ours, theirs = (next(row for row in numbers.rows if row.model == model) for model in ("DiffCLIP", "CLIP"))
    test = compare_counts(ours.right, numbers.pairs, theirs.right, numbers.pairs)
    return (
        f"{source(numbers.source)} {numbers.remark} Their difference is {100 * test.difference:+.1f} points, 95 % "
        f"interval {100 * test.low:+.1f} to {100 * test.high:+.1f}, p = {test.p:.2f} (Newcombe; Fisher's exact test)."
    ).replace(" -", " −")


def printed_lines(table: PaperTable | None, sets: Sequence[str]) -> list[Line]:
    """The printed rows under the columns of `sets`; of several sets an average over them."""
    if table is None:
        return []
    lines = []
    for row in table.rows:
        baseline = table.baseline(row)
        cells = [_printed(table, row, baseline, dataset) for dataset in sets]
        if len(sets) > 1:
            cells.append(_printed_average(table, row, baseline, sets))
        lines.append(Line(row.label, cells, ours=False))
    return lines


def _printed(table: PaperTable, row: PaperRow, baseline: PaperRow | None, dataset: str) -> Cell:
    if dataset not in table.sets:
        return Cell()
    at = table.sets.index(dataset)
    sd = row.sds[at] / 100 if row.sds else None
    gain = None
    if row.gains:
        gain = row.gains[at] / 100
    elif baseline is not None and sd is None:
        gain = (row.values[at] - baseline.values[at]) / 100
    return Cell(f"{row.values[at]:.1f}", sd=sd, gain=gain)


def _printed_average(
    table: PaperTable, row: PaperRow, baseline: PaperRow | None, sets: Sequence[str]
) -> Cell:
    """The printed average where all its sets are shown; else the mean of those that are, if the paper has each."""
    if set(sets) == set(table.sets) and row.average is not None:
        sd = row.average_sd / 100 if row.average_sd is not None else None
        gain = row.average_gain / 100 if row.average_gain is not None else None
        return Cell(f"{row.average:.1f}", sd=sd, gain=gain)
    if not set(sets) <= set(table.sets):
        return Cell()
    places = [table.sets.index(dataset) for dataset in sets]
    mean = statistics.fmean(row.values[at] for at in places)
    if baseline is None or row.sds:
        return Cell(f"{mean:.1f}")
    return Cell(f"{mean:.1f}", gain=(mean - statistics.fmean(baseline.values[at] for at in places)) / 100)


def printed_cell(value: float | None, gain: float | None) -> Cell:
    return Cell("–" if value is None else f"{value:.1f}", gain=None if gain is None else gain / 100)


def source(place: str) -> str:
    numbers = paper_numbers()
    return (
        f"{PRINTED}: {numbers.paper}, {place}; {numbers.architecture}, trained on other data than ours; "
        "differences as printed, not tested."
    )
