"""Where the models look, as a section of a page and of a Markdown file: charts, what they say, and the numbers."""

from __future__ import annotations

import html
from collections.abc import Mapping

from diffclip.report.appendix_c import CLAIM, appendix_c
from diffclip.report.chart_html import chart_html
from diffclip.report.charts import Chart
from diffclip.report.focus_charts import focus_charts
from diffclip.report.focus_metrics import MEANINGS
from diffclip.report.focus_tables import focus_tables, folded_tables
from diffclip.report.series import Collection
from diffclip.report.tables import to_html, to_markdown

_INTRO = (
    "Where a model looks, against masks and without a threshold: relevance says which patches speak for a text, "
    "attention what the class token makes its picture from. How spread out attention is, and how much of it lies on "
    "the class token or on single background patches, is neither good nor bad by itself."
)
_QUESTION = "Is A1 salient, and A2 diffuse?"
_MORE = "Other maps and measures, and every layer"


def focus_html(collection: Collection) -> str:
    """The section's HTML without its heading; empty where nothing was measured."""
    charts = {kind: "".join(map(_titled, own)) for kind, own in focus_charts(collection).items()}
    tables = focus_tables(collection, every_seed=False)
    folded = folded_tables(collection, every_seed=False)
    if not any(charts.values()) and not tables and not folded:
        return ""
    lines = "".join(f"<li>{html.escape(one.text)}</li>" for one in appendix_c(collection))
    claim = (
        f'<h3>{_QUESTION}</h3><p>{html.escape(CLAIM)}</p><ul class="findings">{lines}</ul>' if lines else ""
    )
    parts = [
        f'<p>{html.escape(_INTRO)}</p><p class="note">{html.escape(MEANINGS)}</p>',
        charts["detectors"],
        *map(to_html, tables),
        charts["layers"],
        claim,
        charts["pairs"],
        charts["heads"],
    ]
    if folded:
        parts.append(f"<details><summary>{_MORE}</summary>{''.join(map(to_html, folded))}</details>")
    return "".join(parts)


def _titled(chart: Chart) -> str:
    return f"<h3>{html.escape(chart.title)}</h3>{chart_html(chart)}"


def focus_markdown(collection: Collection, links: Mapping[str, str]) -> list[str]:
    """The section's paragraphs, `links` holding the Markdown of each chart by its name; none where nothing was
    measured."""
    charts = {kind: [links[one.name] for one in own] for kind, own in focus_charts(collection).items()}
    tables, folded = focus_tables(collection), folded_tables(collection, every_seed=False)
    if not any(charts.values()) and not tables and not folded:
        return []
    lines = "".join(f"- {one.text}\n" for one in appendix_c(collection))
    parts = [
        f"{_INTRO}\n\n{MEANINGS}\n",
        *charts["detectors"],
        *map(to_markdown, tables),
        *charts["layers"],
        *([f"**{_QUESTION}** {CLAIM}\n", lines] if lines else []),
        *charts["pairs"],
        *charts["heads"],
    ]
    if folded:
        parts += [f"<details>\n<summary>{_MORE}</summary>\n", *map(to_markdown, folded), "</details>\n"]
    return parts
