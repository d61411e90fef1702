"""A report as one self-contained HTML page or a Markdown file, and its figures and tables as files."""

from __future__ import annotations

import os
import platform
import re
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from diffclip.evaluation.averages import DERIVED
from diffclip.files import write_text
from diffclip.report import figures, tables
from diffclip.report.compare import ONE_RUN, baselines_of, cautions, contrast_of, headline, is_tested
from diffclip.report.figures import Chart
from diffclip.report.frame import Results, headlines, read_results
from diffclip.report.style import png_of, style, write_figure
from diffclip.report.tables import VALUES, Table, comparison_table
from diffclip.training.run_folder import METRICS_FILE, Run, read_run, run_folders

Part = TypeVar("Part", Chart, Table)
_SETTINGS = ("model", "init", "seed", "batch_size", "lr", "weight_decay", "warmup_epochs", "precision")


class Extra(NamedTuple):
    """A section of figures with a text before them."""

    title: str
    text: str
    figures: list[Figure]


class Section(NamedTuple):
    """A section of a page; it is folded at first unless `open`."""

    name: str
    title: str
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    open: bool = False


class Report(NamedTuple):
    """The content of a page: a headline, notes on the comparison, forest plots, one table, sections to unfold."""

    title: str
    headline: str
    notes: list[str]
    charts: list[Chart]
    table: Table | None
    sections: list[Section]
    protocols: list[str]


@style()
def build_report(results: Results, paths: Sequence[str | Path] = (), title: str | None = None) -> Report:
    """Choose the content of the report on `results`, which were read from `paths`, and draw it."""
    records, verdicts, primary = results.records, results.verdicts, results.primary
    tasks, arms = verdicts, verdicts[:0]
    if primary is not None:
        is_pair = verdicts["arm"].eq(primary["arm"]) & verdicts["against"].eq(primary["against"])
        tasks, arms = verdicts[is_pair], verdicts[verdicts["label"] == primary["label"]]
    charts: list[Chart | None] = []
    table = None
    if is_tested(tasks):
        pairs = tasks[["arm", "against"]].drop_duplicates()
        name = contrast_of(tasks.iloc[0]) if len(pairs) == 1 else f"Models − {baselines_of(tasks)}"
        charts.append(figures.forest_chart(results, tasks, f"{name} by measure"))
        table = comparison_table(results, tasks, f"{name} by measure")
    elif len(records):
        declared = verdicts.get("measure", ()) if results.spec else ()
        measures = list(dict.fromkeys(one for one in declared if one >= 0)) or headlines(records)
        charts.append(figures.values_chart(results, measures))
        note = VALUES if results.has_several_seeds else f"{ONE_RUN} {VALUES}"
        table = tables.values_table(results, measures, "Values by measure", note, "comparison")
        # a row per model, so that no column is cut
        if len(results.models) > max(tables.MAX_COLUMNS, len(measures)):
            by_model = table.frame.set_index("task").T.rename_axis(columns=None)
            table = replace(table, frame=by_model.reset_index(names="model"))
    arms_tables, family_tables = list[Table](), list[Table]()
    if len(arms) > 1 and is_tested(arms):
        heading = f"Arms: {arms['label'].iloc[0]}"
        charts.append(figures.forest_chart(results, arms, heading, "arms", "arm"))
        arms_tables = [comparison_table(results, arms, heading, "arms", "arm")]
    if len(verdicts) > max(len(tasks), len(arms)) and is_tested(verdicts):
        family_tables = [comparison_table(results, verdicts, "Every declared comparison", "family")]
    only_maps = bool(records["task"].isin(tables.WITH_MAPS).all())
    drawn = (figures.six_tasks_chart, figures.out_of_domain_chart, figures.pairs_chart)
    of_paper = _some(*(draw(results) for draw in drawn))
    training = _some(figures.training_chart(results), figures.lambda_chart(results))
    numbers = tables.all_values(results) if len(records) else []
    sections = [
        Section("arms", "Arms and ablations", tables=arms_tables),
        Section("family", "Every declared comparison", tables=family_tables),
        Section("maps", "Maps and their baselines", tables=_some(tables.maps_table(results)), open=only_maps),
        Section("paper", "The paper's figures", of_paper),
        Section("training", "Training", training, open=records.empty),
        Section("numbers", "Every number", tables=numbers),
        Section("runs", "Runs", tables=_some(tables.runs_table(results))),
    ]
    sections = [section for section in sections if section.charts or section.tables]
    folders = _run_sections(paths)
    if records.empty:
        summary = ". ".join([section.title for section in folders[:3]] or ["No results yet"]) + "."
        sections = folders + sections
    else:
        summary, sections = headline(results), sections + folders
    models = results.models
    default_title = " and ".join(filter(None, [", ".join(models[:-1]), *models[-1:]])) or "Results"
    if len(models) > 3:
        default_title = f"{len(models)} models"
    if results.spec and results.spec.title:
        default_title = results.spec.title
    elif len(paths) == 1 and (Path(paths[0]) / METRICS_FILE).is_file():
        default_title = f"Run {Path(paths[0]).resolve().name}"
    measured = records.loc[~records["task"].isin([*DERIVED, "training", "cost"]), "protocol"]
    protocols = [str(text) for text in dict.fromkeys(measured) if text][:40]
    notes = cautions(results)
    return Report(title or default_title, summary, notes, _some(*charts), table, sections, protocols)


def write_report(
    paths: Sequence[str | Path],
    output: str | Path,
    title: str | None = None,
    command: str = "",
    extras: Sequence[Extra] = (),
) -> Path:
    """Write the report about run folders, record files or a study to one HTML file, whole or not at all.

    The page shows `command`, which makes it. `title` defaults to the spec's, the run's name or the models'.
    """
    return write_page(output, build_report(read_results(paths), paths, title), command, extras)


def write_page(output: str | Path, report: Report, command: str = "", extras: Sequence[Extra] = ()) -> Path:
    """Write a report of `build_report` to one HTML file, whole or not at all."""
    from jinja2 import Environment

    source = files("diffclip.report").joinpath("page.html.j2").read_text("utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
    page = template.render(
        report=report,
        extras=extras,
        command=command,
        versions=f"Python {platform.python_version()}, diffclip {version('diffclip')}, torch {version('torch')}",
        image=lambda figure: b64encode(png_of(figure, dpi=160)).decode(),
    )
    write_text(output, page)
    return Path(output)


def write_markdown(
    output: str | Path, report: Report, command: str = "", folder: str | Path | None = None
) -> list[Path]:
    """Write a report as a short Markdown file, with its forest plots as PNG files in `folder`, by default `figures/`
    beside the file; their names begin with the file's. Return the files that were written."""
    output = Path(output)
    figure_folder = Path(folder) if folder else output.parent / "figures"
    written, images = [output], []
    for chart in report.charts:
        written.append(write_figure(figure_folder / f"{output.stem}_{chart.name}.png", chart.figure))
        images.append(f"![{chart.title}]({Path(os.path.relpath(written[-1], output.parent)).as_posix()})")
    lines = [f"# {report.title}", "", report.headline, "", *(f"- {note}" for note in report.notes), ""]
    lines += [" ".join(images), "", report.charts[0].caption, ""] if images else []
    if report.table:
        lines += [report.table.to_markdown(), "", report.table.note, ""]
    for section in report.sections:
        if section.name in ("arms", "family") or (section.name == "maps" and section.open):
            lines += [f"## {section.title}", "", section.tables[0].to_markdown(), ""]
    lines += [f"`{command}`"] if command else []
    text = "\n".join(lines).rstrip()
    write_text(output, re.sub(r"\n{3,}", "\n\n", text) + "\n")
    return written


def write_charts(folder: str | Path, report: Report, kind: str = "png") -> list[Path]:
    """Write every figure of the report into `folder`, as "png", "svg" or "pdf", and return the files."""
    charts = [*report.charts, *(chart for section in report.sections for chart in section.charts)]
    return [write_figure(Path(folder) / f"{chart.name}.{kind}", chart.figure) for chart in charts]


def write_tables(folder: str | Path, report: Report) -> list[Path]:
    """Write the tables of verdicts, or of values without them, as Markdown and LaTeX, and return the files."""
    chosen = [report.table] if report.table else []
    for section in report.sections:
        chosen += section.tables if section.name in ("arms", "family") else []
    written = []
    for table in chosen:
        markdown = f"{table.title}\n\n{table.to_markdown()}\n\n{table.note}\n"
        for suffix, text in ((".md", markdown), (".tex", table.to_latex())):
            written.append(Path(folder) / f"{table.name}{suffix}")
            write_text(written[-1], text)
    return written


def _run_sections(paths: Sequence[str | Path]) -> list[Section]:
    """Make a section per run folder: how far the run is and how it was started. If there is only one, it is open."""
    runs = [read_run(run) for path in map(Path, paths) if path.is_dir() for run in run_folders(path)]
    sections = []
    for run in runs:
        facts = run_facts(run)
        table = Table("facts", "", pd.DataFrame(facts.items(), columns=["", run.name]))
        title = f"Run {run.name}: {facts['state']}, step {facts['step']}"
        sections.append(Section("run", title, tables=[table], open=len(runs) == 1))
    return sections


def run_facts(run: Run) -> dict[str, str]:
    """Return facts about a run by name, with its state and step; unknown facts are left out."""
    last, state, start = run.rows[-1], run.state(time.time()), run.starts[-1] if run.starts else {}
    end = f": {run.ended['how']}" if state == "stopped" and run.ended.get("how") else ""
    total = f" of {run.steps:,} ({100 * last['step'] / run.steps:.0f} %)" if run.steps else ""
    moment = datetime.fromtimestamp(last.get("time") or run.write_time)
    facts = {"state": f"{state}{end}", "step": f"{last['step']:,}{total}"}
    facts["last step at"] = f"{moment:%Y-%m-%d %H:%M}"
    rates = [row["samples_per_second"] for row in run.rows[-50:] if row.get("samples_per_second")]
    if rates:
        wait = last.get("data_wait")
        facts["rate"] = f"{np.median(rates):,.0f} samples per second"
        facts["rate"] += f", {100 * wait:.0f} % of the time waiting for data" if wait else ""
    if state == "going" and last.get("seconds_left") is not None:
        facts["time left"] = f"{last['seconds_left'] / 60:,.0f} min"
    facts["recipe"] = _list_facts({name: run.recipe.get(name) for name in _SETTINGS})
    for name in ("machine", "processes", "versions", "git", "data"):
        facts[name] = _list_facts({key: value or None for key, value in (start.get(name) or {}).items()})
    gpus = Counter(gpu.get("name", "GPU") for gpu in start.get("gpus") or [])
    facts["GPUs"] = ", ".join(f"{count} × {name}" for name, count in gpus.items())
    facts["command"] = str(start.get("command") or "")
    facts["starts"] = str(len(run.starts)) if len(run.starts) > 1 else ""
    return {name: text for name, text in facts.items() if text}


def _list_facts(facts: dict[str, Any]) -> str:
    """List named values that are known: lists without brackets, data sources as specs, memory in GiB."""
    texts = []
    for name, value in facts.items():
        if isinstance(value, (list, tuple)):
            value = ", ".join(str(item["spec"] if isinstance(item, dict) else item) for item in value)
        elif isinstance(value, int) and "memory" in name:
            value = f"{value / 2**30:.1f} GiB"
        texts += [f"{name} {value}"] if value is not None else []
    return ", ".join(texts)


def _some(*parts: Part | None) -> list[Part]:
    return [part for part in parts if part]
