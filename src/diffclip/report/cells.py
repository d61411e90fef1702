"""Rows of our own numbers: a value a column, with its difference to CLIP."""

from __future__ import annotations

from collections.abc import Sequence

from diffclip.evaluation.averages import DROP
from diffclip.report.compare import Comparison, Measure, by_series, estimate
from diffclip.report.series import Collection, Series
from diffclip.report.sheet import Cell, Line

Column = tuple[str, Measure | None]
"""The head of a column and what is in it; None where only the paper has it."""


def own_lines(
    collection: Collection, columns: Sequence[Column], comparisons: Sequence[Comparison]
) -> list[Line]:
    """A row a model that has any of the columns, with its differences to CLIP."""
    told = {(one.measure, one.series): one for one in comparisons}
    lines = []
    for series in collection.series:
        cells = [
            _cell(collection, measure, series, told.get((measure, series)) if measure else None)
            for _, measure in columns
        ]
        if any(cell.text != "–" for cell in cells):
            lines.append(Line(series.label, cells))
    return lines


def _cell(
    collection: Collection, measure: Measure | None, series: Series, comparison: Comparison | None
) -> Cell:
    seeds = by_series(collection.results, measure).get(series) if measure else None
    if not seeds:
        return Cell()
    text = f"{100 * estimate(seeds).mean:.1f}".replace("-", "−")
    if comparison is None:
        return Cell(text)
    outcome = comparison.outcome
    if comparison.measure.metric == DROP and outcome != "unclear":
        # a larger drop is the worse one
        outcome = "lower" if outcome == "higher" else "higher"
    return Cell(text, gain=comparison.difference.mean, outcome=outcome)
