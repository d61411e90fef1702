"""`diffclip report`: runs and results as an HTML page, a Markdown file, figures and tables."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from diffclip.cli.console import say
from diffclip.errors import InputError, require_report
from diffclip.files import printable

_PATHS = "Run folders, a study, result files (.jsonl, .csv), or folders of them."
_OUTPUT = "Write one self-contained HTML page to this file. Default: report.html."
_FIGURES = "Write the figures into this folder; with --markdown, only the figures of that page, as PNG."
_FORMAT = "Format of --figures; svg and pdf are for papers, 5.4 inches wide."
_AGAINST = "Baseline of every model. Default: the CLIP of its size; without any CLIP, the first model."


def report(
    paths: Annotated[list[Path], typer.Argument(help=_PATHS, metavar="RESULTS")],
    output: Annotated[Path | None, typer.Option(help=_OUTPUT)] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write a short Markdown page to this file.")] = None,
    figures: Annotated[Path | None, typer.Option(help=_FIGURES)] = None,
    format: Annotated[Literal["png", "svg", "pdf"], typer.Option(help=_FORMAT)] = "png",
    tables: Annotated[
        Path | None, typer.Option(help="Write the tables into this folder, as Markdown and LaTeX.")
    ] = None,
    against: Annotated[str | None, typer.Option(help=_AGAINST, metavar="<model>")] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page or of the Markdown file.")] = None,
) -> None:
    """Show which model is better at which task, and whether the difference is real.

    Of a folder with a spec.yaml (of a study, or of comparisons alone), the comparisons are those that it declares. They
    are also written to verdicts.csv there.

    Example: diffclip report results.jsonl --output report.html

    Example: diffclip report runs/diffclip (writes report.html into that run's folder, also during training)

    Example: diffclip report mine.jsonl base.jsonl --against base --tables out/tables --figures out/figures --format pdf

    Example: diffclip report experiments/study_cpu --markdown study_cpu.md
    """
    require_report()
    if sys.stderr.isatty():
        say(f"diffclip: reading {', '.join(printable(str(path)) for path in paths)}")
    from diffclip.training.run_folder import METRICS_FILE

    if all(target is None for target in (output, tables, figures, markdown)):
        is_run = len(paths) == 1 and (paths[0] / METRICS_FILE).is_file()
        output = paths[0] / "report.html" if is_run else Path("report.html")
    from diffclip.evaluation.verdicts import write_verdicts
    from diffclip.report.frame import read_results
    from diffclip.report.page import build_report, write_charts, write_markdown, write_page, write_tables

    for option, file, ending in (("--output", output, ".html"), ("--markdown", markdown, ".md")):
        if file is not None and file.suffix != ending:
            raise InputError(f"{option} {file}: give a name that ends with {ending}")
    if format != "png" and (figures is None or markdown is not None):
        raise InputError(f"--format {format} is for --figures without --markdown: add --figures FOLDER")
    written: list[Path] = []
    command = shlex.join(["diffclip", *sys.argv[1:]])
    results = read_results(paths, against)
    if results.folder and os.access(results.folder, os.W_OK):
        write_verdicts(results.folder, results.verdicts)
    built = build_report(results, paths, title)
    if output is not None:
        written.append(write_page(output, built, command))
    if markdown is not None:
        written += write_markdown(markdown, built, command, figures)
    elif figures is not None:
        written += write_charts(figures, built, format)
    if tables is not None:
        written += write_tables(tables, built)
    for path in written:
        typer.echo(f"wrote {path}")
