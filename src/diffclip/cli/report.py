"""`diffclip report`: runs and results as an HTML page, as a section of Markdown, or condensed for keeping."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Run folders, result files (.jsonl), or folders of either.", metavar="PATH..."),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Write one self-contained HTML page to this file.")
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "CLIP and DiffCLIP",
    markdown: Annotated[
        Path | None, typer.Option(help="Put tables and figures into a section of this Markdown file.")
    ] = None,
    section: Annotated[
        str | None, typer.Option(help="Name of that section: <!-- begin NAME --> … <!-- end NAME -->.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for its figures; default: figures/ beside the Markdown file.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Condense the runs into this folder, small enough to commit.")
    ] = None,
) -> None:
    """Show which model is better at what, and whether the difference is real.

    Example: diffclip report runs/clip runs/diffclip --output report.html

    Example: diffclip report benchmarks/results/demo --markdown docs/results.md --section demo

    Example: diffclip report runs/clip runs/diffclip --save benchmarks/results/demo
    """
    from diffclip.errors import InputError, require_group

    if output is None and markdown is None and save is None:
        raise InputError(
            "nothing to write: give --output report.html, --markdown FILE --section NAME or --save FOLDER"
        )
    if (markdown is None) != (section is None):
        raise InputError("--markdown FILE and --section NAME go together: give both")

    require_group("train", "matplotlib")
    from diffclip.report.sources import read_sources

    runs, records = read_sources(paths)
    if save is not None:
        from diffclip.report.save import save_results

        typer.echo(f"wrote {save_results([run.folder for run in runs], save, records)}")
    if output is not None:
        from diffclip.report.page import write_report

        command = _command(paths, "--output", output)
        typer.echo(f"wrote {write_report(output, runs, records, title, command=command)}")
    if markdown is not None and section is not None:
        from diffclip.report.markdown import write_section
        from diffclip.report.series import collect

        folder = figures or markdown.parent / "figures"
        place = ["--figures", figures] if figures is not None else []
        command = _command(paths, "--markdown", markdown, "--section", section, *place)
        for path in write_section(markdown, section, collect(runs, records), folder, command):
            typer.echo(f"wrote {path}")


def _command(paths: list[Path], *rest: object) -> str:
    """The command line that makes the same again."""
    return shlex.join(["diffclip", "report", *map(str, paths), *map(str, rest)])
