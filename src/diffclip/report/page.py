"""One self-contained HTML page about runs and their results: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from matplotlib.figure import Figure

from diffclip.errors import InputError
from diffclip.evaluation.records import Record
from diffclip.files import write_text
from diffclip.report.bars import metric_chart
from diffclip.report.charts import Chart, Key
from diffclip.report.curves import telemetry_chart, training_chart, validation_chart
from diffclip.report.lambdas import lambda_chart, lambda_training_chart
from diffclip.report.metrics import VALIDATION_ORDER, metric_name, percentage
from diffclip.report.origin import limits, origin_table, versions
from diffclip.report.runs import Run
from diffclip.report.scoreboard import scoreboard
from diffclip.report.series import Collection, Series, collect
from diffclip.report.style import dark_rules, darkened, data_uri, png_of, svg_of
from diffclip.report.tables import result_tables, to_html
from diffclip.report.verdict import basis, judge


@dataclass(frozen=True)
class Extra:
    """A section of figures, as `pictures` and `attention_maps` make them, with a text before them."""

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
) -> Path:
    """Write the report to `output`, whole or not at all, and return its path.

    Args:
        output: the HTML file.
        runs: training runs; their own records need not be among `records`.
        records: further evaluation records.
        title: the page's heading.
        extras: sections of retrieved examples, attention pictures and the like.
        command: what made the page, shown on it.

    Raises:
        InputError: there is neither a run nor a record, or `output` cannot be written.
    """
    if not runs and not records:
        raise InputError("nothing to report: give at least one run or one evaluation record")
    write_text(output, page(collect(runs, records), title, extras, command))
    return Path(output)


def page(collection: Collection, title: str, extras: Sequence[Extra] = (), command: str | None = None) -> str:
    """The report as HTML text."""
    sections = [*_results(collection), *_training(collection), *_lambdas(collection)]
    sections += [(extra.title, _extra(extra)) for extra in extras]
    sections.append(("How it was made", _origin(collection, command)))
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
        f"{_verdict(collection)}</header><nav>{links}</nav>{body}"
        f"<footer>{html.escape(versions())}</footer></main></body></html>\n"
    )


def chart_html(chart: Chart) -> str:
    """A chart with its legend as text and one picture a panel, light and dark."""
    legend = "".join(f"<li>{_swatch(key)}{html.escape(key.label)}</li>" for key in chart.legend)
    panels = []
    for panel in chart.panels:
        svg = svg_of(panel.figure())
        panels.append(
            f'<picture><source srcset="{data_uri(darkened(svg))}" media="(prefers-color-scheme: dark)">'
            f'<img src="{data_uri(svg)}" alt="{html.escape(panel.title)}"></picture>'
        )
    above = f'<ul class="legend">{legend}</ul>' if legend else ""
    caption = html.escape(chart.caption)
    return (
        f'<figure class="chart">{above}<div class="panels">{"".join(panels)}</div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _results(collection: Collection) -> list[tuple[str, str]]:
    chart = metric_chart(collection)
    if chart is None:
        return []
    tables = "".join(map(to_html, result_tables(collection, every_seed=False)))
    if any(len(seeds) > 1 for seeds in _seeds(collection).values()):
        every = "".join(map(to_html, result_tables(collection)))
        tables += f"<details><summary>Every seed</summary>{every}</details>"
    return [("Results", chart_html(chart) + tables)]


def _seeds(collection: Collection) -> dict[Series, set[int | None]]:
    seeds: dict[Series, set[int | None]] = {}
    for result in collection.results:
        seeds.setdefault(result.series, set()).add(result.seed)
    return seeds


def _training(collection: Collection) -> list[tuple[str, str]]:
    if not collection.runs:
        return []
    charts = [training_chart(collection), validation_chart(collection)]
    content = "".join(chart_html(chart) for chart in charts if chart)
    telemetry = telemetry_chart(collection)
    if telemetry:
        content += f"<details><summary>More telemetry</summary>{chart_html(telemetry)}</details>"
    return [("Training", content)]


def _lambdas(collection: Collection) -> list[tuple[str, str]]:
    charts = [chart for chart in (lambda_chart(collection), lambda_training_chart(collection)) if chart]
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


def _origin(collection: Collection, command: str | None) -> str:
    parts = []
    if collection.runs:
        parts.append(to_html(origin_table(collection)))
        unknown = limits(collection)
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
        note = f'<p class="note">Beneath each value: difference to CLIP in points, {bracket}.</p>'
    return (
        f'<p class="headline">{html.escape(verdict.headline)}</p>'
        + (f'<ul class="headline">{lines}</ul>' if lines else "")
        + f'<p class="caveat">{html.escape(verdict.caveat)}</p>{scoreboard(collection, verdict)}{note}'
    )


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
    datasets = dict.fromkeys(result.record.dataset for result in collection.results)
    counts = [f"{len(collection.series)} model{'s' * (len(collection.series) != 1)}"]
    if collection.runs:
        counts.append(f"{len(collection.runs)} run{'s' * (len(collection.runs) != 1)}")
    return ", ".join([*counts, *datasets])


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _swatch(key: Key) -> str:
    parts = [] if isinstance(key.line, str) else [f"{2 * part:g}" for part in key.line[1]]
    dash = f' stroke-dasharray="{" ".join(parts)}"' if parts else ""
    dot = f'<circle cx="17" cy="6" r="4.5" fill="{key.colour}"/>' if key.marker else ""
    return (
        '<svg viewBox="0 0 34 12" aria-hidden="true"><line x1="0" y1="6" x2="34" y2="6" '
        f'stroke="{key.colour}" stroke-width="3"{dash}/>{dot}</svg>'
    )
