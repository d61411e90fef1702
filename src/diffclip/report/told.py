"""Which comparisons a figure or table shows, with p that are the same wherever a measure is shown."""

from __future__ import annotations

from collections.abc import Sequence

from diffclip.report.compare import Comparison, Measure, compare, corrected
from diffclip.report.metrics import correction
from diffclip.report.series import Collection
from diffclip.report.verdict import judge


def comparisons_of(collection: Collection, measures: Sequence[Measure | None]) -> list[Comparison]:
    """The comparisons in `measures`: those of the verdict as they are there, the others corrected for their number."""
    verdict = judge(collection)
    headline = [one for one in verdict.comparisons if one.measure in measures] if verdict else []
    first = {one.measure for one in headline}
    rest = [one for one in compare(collection) if one.measure in measures and one.measure not in first]
    return headline + corrected(rest)


def correction_of(collection: Collection, comparisons: Sequence[Comparison]) -> str:
    """How the p of `comparisons_of` came about, in sentences; empty where none was tested."""
    verdict = judge(collection)
    first = {one.measure for one in verdict.comparisons} if verdict else set()
    tested = [one for one in comparisons if one.shown_p is not None]
    headline = [one for one in tested if one.measure in first]
    rest = [one for one in tested if one.measure not in first]
    parts = [correction(rest, " of single sets or patterns" if headline else "") or ""]
    if headline and rest:
        tests = max(one.tests for one in headline)
        parts.append(f"What the headline is about is corrected for the {tests} comparisons there.")
    elif headline:
        parts.append(correction(headline, ", those of the headline") or "")
    return " ".join(filter(None, parts))
