"""What a report says of a study before it turns to its models, for Markdown and for HTML, and its figures."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

from diffclip.report.chart_html import chart_html
from diffclip.report.charts import Chart
from diffclip.report.compare import ENOUGH_SEEDS
from diffclip.report.study_ablations import ablation_table, side_by_side_note
from diffclip.report.study_claims import (
    CLOSE,
    FEW_PARAMETERS,
    LITTLE_TIME,
    OPEN,
    Judged,
    judged_claims,
    not_measured,
)
from diffclip.report.study_cost import cost_table
from diffclip.report.study_data import StudyData
from diffclip.report.study_dots import ablation_chart
from diffclip.report.study_init import init_sentence, init_table
from diffclip.report.study_missing import progress
from diffclip.report.study_pairs import NONE, difference_text, enumerated, p_cell
from diffclip.report.study_paper import printed_difference
from diffclip.report.study_ranking import ranking
from diffclip.report.study_strays import strays_sentence
from diffclip.report.study_sweep import sweep_intro, sweep_table
from diffclip.report.study_verdict import verdict
from diffclip.report.tables import Row, Table, to_html, to_markdown

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


def claims_table(data: StudyData) -> Table | None:
    """A row a claim; None where none could be measured."""
    judged = judged_claims(data)
    if not judged:
        return None
    tests = sum(one.p is not None for one in judged)
    lacking = not_measured(data)
    tasks = [f"{claim.words} ({claim.task})" for claim in lacking]
    measures = dict.fromkeys(
        f"{one.claim.task}: {one.measure}" for one in judged if one.measure != one.claim.task
    )
    timed = [one.claim for one in judged if one.claim.kind == "time"]
    notes = [
        "Differences are paired by seed, in points (of parameters and time: in %), from "
        f"{ENOUGH_SEEDS} seeds on with their 95 % interval (Student's t).",
        f"A claim to be better holds where p < 5 % after Holm's correction for the {tests} tests of this table, does "
        "not hold where that is so in the other direction, and else cannot be told."
        if tests
        else f"Nothing was tested: it takes {ENOUGH_SEEDS} seeds that differ.",
        "Detectable: the smallest true difference that so many seeds find in 80 % of cases (at 5 %, uncorrected).",
        f"At least about as good: the whole interval lies above −{100 * CLOSE:g} % of the score that is compared with, "
        f"hardly more: beneath {100 * FEW_PARAMETERS:g} % of parameters, {100 * LITTLE_TIME:g} % of time; these "
        "margins stand in place of what is detectable, and these claims are judged one by one.",
        f"Measured by: {'; '.join(measures)}.",
        *(side_by_side_note(data, [claim.treated, claim.baseline]) for claim in timed),
        "Paper: the gains it prints for ViT-B/16, one training run a model, or of two printed gains the difference.",
        f"Not measured here: {enumerated(tasks)}." if tasks else "",
    ]
    return Table(
        title="The paper's claims at this size",
        columns=[
            *("claim", "task", "verdict", "difference", "p (corrected)", "detectable", "seeds", "paper"),
        ],
        rows=[_row(one) for one in judged],
        notes=[note for note in notes if note],
        numeric=False,
    )


def _row(one: Judged) -> Row:
    places = 3 if one.claim.kind == "parameters" else 1
    difference = difference_text(one.test, places)
    if one.claim.kind in ("parameters", "time"):
        # what is counted is the same for every seed
        difference = difference.partition(" [")[0] if one.claim.kind == "parameters" else difference
        value, _, bracket = difference.partition(" [")
        difference = f"{value} %" + (f" [{bracket}" if bracket else "")
    detectable = one.test.detectable
    bound = NONE if detectable is None else f"{100 * detectable:.1f}"
    if one.margin is not None:
        bound = f"margin {'−' if one.claim.kind == 'as good' else ''}{100 * one.margin:.1f}"
    return Row(
        "seed" if one.word == OPEN else "one",
        [
            one.claim.words,
            one.claim.task,
            one.word if one.word == OPEN else f"**{one.word}**",
            difference,
            p_cell(one.test.p, one.p) if one.claim.kind == "better" else NONE,
            bound,
            str(one.seeds),
            printed_difference(one.claim.treated, one.claim.baseline, one.claim.task),
        ],
    )
