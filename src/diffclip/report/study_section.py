"""What a report says of a study before it turns to its models, for Markdown and for HTML, and its figures."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

from diffclip.report.chart_html import chart_html
from diffclip.report.charts import Chart
from diffclip.report.study_ablations import ablation_table
from diffclip.report.study_claims_table import claims_table
from diffclip.report.study_cost import cost_table
from diffclip.report.study_data import StudyData
from diffclip.report.study_dots import ablation_chart
from diffclip.report.study_init import init_sentence, init_table
from diffclip.report.study_missing import progress
from diffclip.report.study_ranking import ranking
from diffclip.report.study_strays import strays_sentence
from diffclip.report.study_sweep import sweep_intro, sweep_table
from diffclip.report.study_verdict import verdict
from diffclip.report.tables import Table, to_html, to_markdown

MODELS = "The models"
"""What is headed so is what a report says of any runs."""
_BOLD = re.compile(r"\*\*([^*]+)\*\*")


@dataclass(frozen=True)
class Part:
    """A part of the report: paragraphs, then charts, then tables."""

    title: str
    words: list[str]
    charts: list[Chart]
    tables: list[Table]


def study_parts(data: StudyData) -> list[Part]:
    """The parts that there is something for; the verdict comes before them."""
    claims, ablations, cost = claims_table(data), ablation_table(data), cost_table(data)
    said, init, sweep = init_sentence(data), init_table(data), sweep_table(data)
    left_out = strays_sentence(data.strays, data.study.recipe)
    parts = [
        Part("The paper's claims", [], [], [claims] if claims else []),
        Part("Ablations", ranking(data), study_charts(data), [ablations] if ablations else []),
        Part("Init", [said] if said else [], [], [init] if init else []),
        Part("Learning rate and weight decay", sweep_intro(data), [], [sweep] if sweep else []),
        Part("Cost", [], [], [cost] if cost else []),
        Part("What has been run", [*([left_out] if left_out else []), progress(data)], [], []),
    ]
    return [part for part in parts if part.words or part.charts or part.tables]


def study_charts(data: StudyData) -> list[Chart]:
    """The figures of a study beside those of its models."""
    chart = ablation_chart(data)
    return [chart] if chart else []


def study_markdown(data: StudyData, links: Mapping[str, str]) -> list[str]:
    """The paragraphs, `links` holding the Markdown of each chart by its name."""
    parts = [f"**Verdict.** {verdict(data)}\n"]
    for part in study_parts(data):
        parts.append(f"### {part.title}\n")
        parts += [f"{words}\n" for words in part.words]
        parts += [links[chart.name] for chart in part.charts]
        parts += map(to_markdown, part.tables)
    return [*parts, f"### {MODELS}\n"] if data.collection.runs else parts


def study_html(data: StudyData) -> list[tuple[str, str]]:
    """A section a part: heading and content."""
    return [
        (
            part.title,
            "".join(f"<p>{html.escape(words)}</p>" for words in part.words)
            + "".join(map(chart_html, part.charts))
            + "".join(_BOLD.sub(r"<b>\1</b>", to_html(table)) for table in part.tables),
        )
        for part in study_parts(data)
    ]
