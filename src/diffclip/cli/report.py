"""`diffclip report`: runs and results as an HTML page, figures, tables, a section of Markdown, or condensed."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffclip.errors import InputError

if TYPE_CHECKING:
    from diffclip.focus.attend import Prepared
    from diffclip.report.runs import Run
    from diffclip.report.series import Collection

_TITLE = "CLIP and DiffCLIP"


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Run folders, result files (.jsonl), or folders of either.", metavar="PATH..."),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Write one self-contained HTML page to this file.")
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = _TITLE,
    tables: Annotated[
        Path | None,
        typer.Option(help="Write the paper's tables with these results into this folder, as .md and .tex."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Write the figures into this folder, as .png and .svg; with --markdown those of the section "
            "(default: figures/ beside the file)."
        ),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Put the numbers that the paper prints beside these.")
    ] = False,
    markdown: Annotated[
        Path | None, typer.Option(help="Put tables and figures into a section of this Markdown file.")
    ] = None,
    section: Annotated[
        str | None, typer.Option(help="Name of that section: <!-- begin NAME --> … <!-- end NAME -->.")
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            help="Draw the paper's Figures 2 and 6 with the runs' best weights: where the models look in pictures of "
            "this set (a folder in clip_benchmark's layout, or a name such as scenes).",
            metavar="SET",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of that set.")] = "test",
    save: Annotated[
        Path | None, typer.Option(help="Condense the runs into this folder, small enough to commit.")
    ] = None,
) -> None:
    """Show which model is better at what, and whether the difference is real.

    Example: diffclip report results.jsonl --output report.html

    Example: diffclip report runs/diffclip (writes the page of that run, which may still be going)

    Example: diffclip report results.jsonl --output report.html --tables out/tables --figures out/figures --paper

    Example: diffclip report runs/clip runs/diffclip --output report.html --attention scenes

    Example: diffclip report benchmarks/results/demo --markdown docs/results.md --section demo

    Example: diffclip report runs/clip runs/diffclip --save benchmarks/results/demo

    Example: diffclip report benchmarks/results/study_cpu --output study.html (a study: the paper's claims, judged)
    """
    from diffclip.errors import InputError, require_group

    if all(place is None for place in (output, tables, figures, markdown, save)):
        if len(paths) == 1 and (paths[0] / "metrics.jsonl").is_file():
            from diffclip.report import report_run

            typer.echo(f"wrote {report_run(paths[0])}")
            return
        raise InputError(
            "nothing to write: give --output report.html, --tables FOLDER, --figures FOLDER, "
            "--markdown FILE --section NAME or --save FOLDER"
        )
    if (markdown is None) != (section is None):
        raise InputError("--markdown FILE and --section NAME go together: give both")

    if attention is not None and output is None and figures is None:
        raise InputError(
            "--attention goes onto a page or among figures: give --output FILE or --figures FOLDER"
        )

    require_group("train", "matplotlib")
    from diffclip.report.sources import read_outcomes_of, read_sources
    from diffclip.report.study_data import study_among
    from diffclip.report.study_strays import strays_sentence

    study = study_among(paths)
    if study is not None and study.strays:
        typer.echo(f"diffclip: {strays_sentence(study.strays, study.study.recipe)}", err=True)
    if study is not None and save is not None:
        raise InputError(f"--save: {paths[0]} is the folder of a study, which is condensed already")
    runs, records = ([], []) if study else read_sources(paths, say=partial(typer.echo, err=True))
    if save is not None:
        from diffclip.report.save import save_results

        typer.echo(
            f"wrote {save_results([run.folder for run in runs], save, records, read_outcomes_of(paths))}"
        )
    if output is None and tables is None and figures is None and markdown is None:
        return

    from diffclip.report.figures import write_figures, write_tables
    from diffclip.report.series import collect

    if not runs and not records and not study:
        raise InputError("nothing to report: give at least one run or one evaluation record")
    collection = study.collection if study else collect(runs, records, read_outcomes_of(paths))
    beside = ["--paper"] if paper else []
    looks = {}
    if attention is not None:
        from diffclip.data.evaluation_sets import open_set
        from diffclip.report.attention import paper_figures
        from diffclip.report.page import Extra

        made = paper_figures(_models_of(collection), open_set(attention, split))
        looks = {stem: Extra(head, text, [figure]) for stem, (head, text, figure) in made.items()}
        beside += ["--attention", attention, *(["--split", split] if split != "test" else [])]
    written: list[Path] = []
    if output is not None:
        from diffclip.report.page import write_page

        named = ["--title", title] if title != _TITLE else []
        command = _command(paths, "--output", output, *named, *beside)
        head = study.study.title if study and title == _TITLE else title
        written.append(write_page(output, collection, head, list(looks.values()), command, paper, study))
    if tables is not None:
        written += write_tables(tables, collection, paper)
    if markdown is not None and section is not None:
        from diffclip.report.markdown import write_section

        folder = figures or markdown.parent / "figures"
        place = ["--figures", figures] if figures is not None else []
        command = _command(paths, "--markdown", markdown, "--section", section, *place, *beside)
        written += write_section(markdown, section, collection, folder, command, paper, study)
    elif figures is not None:
        written += write_figures(figures, collection, study)
    if figures is not None:
        from diffclip.report.charts import save_figure

        written += [
            path for stem, one in looks.items() for path in save_figure(one.figures[0], figures / stem)
        ]
    for path in written:
        typer.echo(f"wrote {path}")


def _command(paths: list[Path], *rest: object) -> str:
    """The command line that makes the same again."""
    return shlex.join(["diffclip", "report", *map(str, paths), *map(str, rest)])


def _models_of(collection: Collection) -> dict[str, Prepared]:
    """The best (else last) checkpoint of each model, of its lowest seed that has one, by its label.

    The label names the seed where the collection has several runs of the model.

    Raises:
        InputError: no run has weights.
    """
    from diffclip.model_source import load_for_use

    found: dict[str, Run] = {}
    for series, run in sorted(collection.runs, key=lambda pair: -1 if pair[1].seed is None else pair[1].seed):
        if any((run.folder / "checkpoints" / name).exists() for name in ("best", "last")):
            found.setdefault(series.label, run)
    if not found:
        raise InputError(
            "none of the runs has a checkpoint to look with: name run folders with their weights"
        )
    alone = len(found) == len(collection.runs)
    models = {}
    for name, run in found.items():
        loaded = load_for_use(str(run.folder))
        label = name if alone or run.seed is None else f"{name}, seed {run.seed}"
        models[label] = (loaded.model, loaded.preprocess, loaded.tokenizer)
    return models
