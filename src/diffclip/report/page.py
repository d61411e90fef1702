"""One self-contained HTML page about runs and their results: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from matplotlib.figure import Figure

from diffclip.errors import InputError
from diffclip.evaluation.outcomes import ItemOutcomes
from diffclip.evaluation.records import Record
from diffclip.files import write_text
from diffclip.report.chart_html import chart_html
from diffclip.report.compare import reference_of
from diffclip.report.curves import telemetry_chart
from diffclip.report.figures import lambda_charts, result_charts, training_charts
from diffclip.report.focus_section import focus_html
from diffclip.report.metrics import VALIDATION_ORDER, metric_name, percentage
from diffclip.report.origin import limits, origin_table, versions
from diffclip.report.paper_tables import paper_sheets
from diffclip.report.pope_section import notice, pope_html
from diffclip.report.run_cards import finished_cards, going_cards
from diffclip.report.runs import Run
from diffclip.report.scoreboard import scoreboard
from diffclip.report.series import Collection, Series, collect
from diffclip.report.sheet import Sheet, sheet_html
from diffclip.report.six_tasks import is_broad
from diffclip.report.study_data import StudyData
from diffclip.report.study_section import MODELS, study_html
from diffclip.report.study_verdict import verdict as study_verdict
from diffclip.report.style import dark_rules, data_uri, png_of
from diffclip.report.tables import result_tables, to_html
from diffclip.report.verdict import basis, judge

_FEW_SETS = 4


@dataclass(frozen=True)
class Extra:
    """A section of figures, as `pictures` and `attention` make them, with a text before them."""

    title: str
    text: str
    figures: list[Figure] = field(default_factory=list)


def write_report(
    output: str | Path,
    runs: Sequence[Run],
    records: Sequence[Record],
    title: str = "CLIP and DiffCLIP",
    extras: Sequence[Extra] = (),
    command: str | None = None,
    outcomes: Mapping[str, ItemOutcomes] | None = None,
    paper: bool = False,
) -> Path:
    """Write the report to `output`, whole or not at all, and return its path.

    Args:
        output: the HTML file.
        runs: training runs; their own records need not be among `records`.
        records: further evaluation records.
        title: the page's heading.
        extras: sections of retrieved examples, attention pictures and the like.
        command: what made the page, shown on it.
        outcomes: of single items, by the key of their record; paired tests need them.
        paper: show the paper's numbers beside these.

    Raises:
        InputError: there is neither a run nor a record, or `output` cannot be written.
    """
    return write_page(output, collect(runs, records, outcomes), title, extras, command, paper)


def write_page(
    output: str | Path,
    collection: Collection,
    title: str = "CLIP and DiffCLIP",
    extras: Sequence[Extra] = (),
    command: str | None = None,
    paper: bool = False,
    study: StudyData | None = None,
) -> Path:
    """`write_report` for what has been collected already; `study` is that whose models were.

    Raises:
        InputError: there is neither a run nor a record, or `output` cannot be written.
    """
    if not collection.runs and not collection.results and study is None:
        raise InputError("nothing to report: give at least one run or one evaluation record")
    write_text(output, page(collection, title, extras, command, paper, study))
    return Path(output)


def page(
    collection: Collection,
    title: str,
    extras: Sequence[Extra] = (),
    command: str | None = None,
    paper: bool = False,
    study: StudyData | None = None,
) -> str:
    """The report as HTML text; with `paper`, the paper's numbers stand beside these.

    With `study`, whose models the collection then is, its verdict heads the page, and theirs becomes a section.
    """
    now = time.time()
    going = going_cards(collection.runs, now)
    sections = [("Progress", going)] if going else []
    head = f"{_verdict(collection)}{_notice(collection)}"
    if study:
        sections += [*study_html(study), *([(MODELS, head)] if collection.runs else [])]
        head = f"<p>{html.escape(study_verdict(study))}</p>"
    looks = focus_html(collection)
    sections += [*_results(collection, paper), *([("Focus", looks)] if looks else [])]
    answers = pope_html(collection, paper)
    sections += [("POPE", answers)] if answers else []
    sections += [*_training(collection), *_lambdas(collection)]
    sections += [(extra.title, _extra(extra)) for extra in extras]
    sections.append(("How it was made", _origin(collection, command, now, study)))
    links = "".join(f'<a href="#{_anchor(name)}">{html.escape(name)}</a>' for name, _ in sections)
    body = "".join(
        f'<section id="{_anchor(name)}"><h2>{html.escape(name)}</h2>{content}</section>'
        for name, content in sections
    )
    kicker = " · ".join(filter(None, (_subject(collection), collection.architecture)))
    css = files("diffclip.report").joinpath("page.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{css}{dark_rules()}</style></head><body><main>"
        f'<header><p class="kicker">{html.escape(kicker)}</p><h1>{html.escape(title)}</h1>'
        f"{head}</header><nav>{links}</nav>{body}"
        f"<footer>{html.escape(versions())}</footer></main></body></html>\n"
    )


def _results(collection: Collection, paper: bool) -> list[tuple[str, str]]:
    """A section a figure, each with its table, and one of tables; what is of single sets is folded where many are."""
    charts, sheets = result_charts(collection), paper_sheets(collection, paper)
    broad = is_broad(collection)
    sections = []
    for chart in charts:
        own = [sheet for sheet in sheets if sheet.name.startswith(chart.name)]
        sections.append((chart.title, chart_html(chart) + _folded("The numbers", own, paper)))
        sheets = [sheet for sheet in sheets if sheet not in own]
    single = _single_sets(collection)
    if charts and not broad:
        # few numbers: the tables of single sets say all there is
        sections[0] = (sections[0][0], sections[0][1] + single)
        return [*sections, ("Tables", "".join(map(sheet_html, sheets)))] if paper and sheets else sections
    if charts or sheets:
        details = f"<details><summary>Every set, every number</summary>{single}</details>"
        sections.append(("Tables", "".join(map(sheet_html, sheets)) + details))
    return sections


def _folded(summary: str, sheets: Sequence[Sheet], unfolded: bool) -> str:
    content = "".join(map(sheet_html, sheets))
    state = " open" if unfolded else ""
    return f"<details{state}><summary>{summary}</summary>{content}</details>" if sheets else ""


def _single_sets(collection: Collection) -> str:
    tables = "".join(map(to_html, result_tables(collection, every_seed=False)))
    if tables and any(len(seeds) > 1 for seeds in _seeds(collection).values()):
        every = "".join(map(to_html, result_tables(collection)))
        tables += f"<details><summary>Every seed</summary>{every}</details>"
    return tables


def _seeds(collection: Collection) -> dict[Series, set[int | None]]:
    seeds: dict[Series, set[int | None]] = {}
    for result in collection.results:
        seeds.setdefault(result.series, set()).add(result.seed)
    return seeds


def _training(collection: Collection) -> list[tuple[str, str]]:
    charts = training_charts(collection)
    if not charts:
        return []
    content = "".join(map(chart_html, charts))
    telemetry = telemetry_chart(collection) if collection.runs else None
    if telemetry:
        content += f"<details><summary>More telemetry</summary>{chart_html(telemetry)}</details>"
    return [("Training", content)]


def _lambdas(collection: Collection) -> list[tuple[str, str]]:
    charts = lambda_charts(collection)
    intro = (
        "<p>A differential layer subtracts λ times a second attention map from the first, "
        "A = softmax(Q₁K₁ᵀ) − λ·softmax(Q₂K₂ᵀ). λ is learned, one a layer, and starts at λ_init.</p>"
    )
    return [("λ", intro + "".join(map(chart_html, charts)))] if charts else []


def _extra(extra: Extra) -> str:
    images = "".join(
        f'<img src="{data_uri(png_of(figure, ground="white"))}" alt="{html.escape(extra.title)}">'
        for figure in extra.figures
    )
    return f'<p>{html.escape(extra.text)}</p><div class="panels">{images}</div>'


def _origin(collection: Collection, command: str | None, now: float, study: StudyData | None) -> str:
    parts = []
    if collection.runs:
        parts.append(to_html(origin_table(collection)))
        cards = finished_cards(collection.runs, now)
        state = " open" if len(collection.runs) == 1 else ""
        parts += [f"<details{state}><summary>Where each run was made</summary>{cards}</details>"] * bool(
            cards
        )
        unknown = limits(collection, swept=bool(study and study.chosen))
        parts += [f"<p>{html.escape(unknown)}</p>"] if unknown else []
        parts.append("<p>Any of these runs, again:</p><pre>diffclip train RUN/recipe.yaml --run FOLDER</pre>")
    if command:
        parts.append(f"<p>This page:</p><pre>{html.escape(command)}</pre>")
    return "".join(parts)


def _verdict(collection: Collection) -> str:
    verdict = judge(collection)
    if verdict is None:
        return _progress(collection)
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in verdict.lines)
    note = ""
    if verdict.comparisons:
        bracket = html.escape(" or ".join(dict.fromkeys(basis(one) for one in verdict.comparisons)))
        reference = html.escape(reference_of(verdict.comparisons))
        note = f'<p class="note">Beneath each value: difference to {reference} in points, {bracket}.</p>'
    return (
        f'<p class="headline">{html.escape(verdict.headline)}</p>'
        + (f'<ul class="headline">{lines}</ul>' if lines else "")
        + f'<p class="caveat">{html.escape(verdict.caveat)}</p>{scoreboard(collection, verdict)}{note}'
    )


def _notice(collection: Collection) -> str:
    said = notice(collection)
    return f'<p class="caveat">{html.escape(said)}</p>' if said else ""


def _progress(collection: Collection) -> str:
    """What can be said before anything was evaluated: the best validation of each run."""
    lines = []
    for series, run in collection.runs:
        if run.best is not None:
            metrics = [name for name in VALIDATION_ORDER if name in run.best]
            reached = ", ".join(f"{metric_name(name)} {percentage(run.best[name])}" for name in metrics)
            lines.append(
                f"{series.label}, seed {run.seed}: {reached} after epoch {run.best.get('epoch', 0):.0f}"
            )
    head = "Best validation so far:" if lines else "Neither validated nor evaluated yet."
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return (
        f'<p class="headline">{head}</p>'
        + (f'<ul class="headline">{items}</ul>' if items else "")
        + '<p class="caveat">This page shows training only: no test set has been evaluated.</p>'
    )


def _subject(collection: Collection) -> str:
    """How much the page is about: "2 models, 6 runs, scenes"."""
    datasets = collection.datasets
    counts = [f"{len(collection.series)} model{'s' * (len(collection.series) != 1)}"]
    if collection.runs:
        counts.append(f"{len(collection.runs)} run{'s' * (len(collection.runs) != 1)}")
    return ", ".join([*counts, *(datasets if len(datasets) <= _FEW_SETS else [f"{len(datasets)} sets"])])


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")
