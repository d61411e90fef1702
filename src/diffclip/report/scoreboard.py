"""The answer in ten seconds: models against headline measures, with the difference to CLIP in every cell."""

from __future__ import annotations

import html

from diffclip.report.compare import Comparison, Measure, by_series, estimate
from diffclip.report.metrics import (
    amount,
    chance_of,
    level_name,
    level_text,
    measure_name,
    place_of,
    tested_points,
)
from diffclip.report.series import Collection, Series
from diffclip.report.style import colours_of
from diffclip.report.verdict import Verdict

_TAGS = {"higher": "better", "lower": "worse", "unclear": "cannot tell"}


def scoreboard(collection: Collection, verdict: Verdict) -> str:
    """The comparisons of `verdict` as an HTML table, empty where there are none."""
    if not verdict.comparisons:
        return ""
    colours = colours_of(collection.series)
    told = {(one.series, one.measure): one for one in verdict.comparisons}
    shown = {one.series for one in verdict.comparisons} | {one.baseline for one in verdict.comparisons}
    rows = []
    for series in (one for one in collection.series if one in shown):
        cells = [
            _cell(collection, series, measure, told.get((series, measure))) for measure in verdict.measures
        ]
        square = f'<rect width="12" height="12" rx="3" fill="{colours[series]}"/>'
        dot = f'<svg viewBox="0 0 12 12" aria-hidden="true">{square}</svg>'
        rows.append(f"<tr><th scope=row>{dot}{html.escape(series.label)}</th>{''.join(cells)}</tr>")
    head = "".join(_head(collection, measure) for measure in verdict.measures)
    return (
        '<div class="scroll"><table class="scoreboard">'
        f"<thead><tr><th scope=col>model</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _head(collection: Collection, measure: Measure) -> str:
    chance = chance_of(measure, collection.results)
    level = f", {level_name(measure)} {level_text(measure, chance)}" if chance is not None else ""
    place = html.escape(f"{place_of(measure) or 'mean over sets'}{level}")
    return f"<th scope=col>{html.escape(measure_name(measure))}<small>{place}</small></th>"


def _cell(collection: Collection, series: Series, measure: Measure, comparison: Comparison | None) -> str:
    # on a narrow screen a cell has no column head above it
    place = place_of(measure) if len(collection.datasets) > 1 else None
    label = f' data-label="{html.escape(measure_name(measure) + (f" on {place}" if place else ""))}"'
    seeds = by_series(collection.results, measure).get(series)
    if not seeds:
        return f"<td{label}>–</td>"
    value = f"<b>{amount(measure.metric, estimate(seeds).mean)}</b>"
    if comparison is None:
        return f"<td{label}>{value}</td>"
    outcome = comparison.outcome
    return (
        f'<td{label}>{value}<em class="tag {outcome}">{_TAGS[outcome]}</em>'
        f"<span>{html.escape(tested_points(comparison))}</span></td>"
    )
