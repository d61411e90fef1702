"""`diffclip data check`: what shards hold, and whether it is fit to train on."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diffclip.data.check import Check
    from diffclip.data.samples import Fault

_NAMED = 10
_CONTEXT = 77


def check(
    shards: Annotated[
        list[str],
        typer.Argument(
            help="Shards: folders, files, ranges '{000..127}.tar' or addresses, as a recipe names them.",
            metavar="SHARDS...",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Write all that was found to this file, as JSON.", metavar="FILE")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write a page with pictures to this file, as HTML.", metavar="FILE")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(help="Read so many samples, drawn at random; by default all.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed draws others.", min=0)] = 0,
    workers: Annotated[int, typer.Option(help="Processes that read; 0 takes one a core.", min=0)] = 0,
    context_length: Annotated[
        int, typer.Option(help="Tokens that the model reads of a caption.", min=2)
    ] = _CONTEXT,
    caption_key: Annotated[
        str, typer.Option(help="Key of the captions in .json, as in a recipe.")
    ] = "caption",
) -> None:
    """Say what shards hold: counts, sizes, lengths, duplicates, languages, and what is broken.

    Every sample is read as training reads it. On the way the index beside the shards is made. Memory grows by about 70
    bytes a sample: of hundreds of millions, read a --sample.

    Example: diffclip data check sets/cc3m/train --output cc3m.json --page cc3m.html

    Exit code 0 where there is something to train on, be some of it broken; 2 where there is nothing.
    """
    from diffclip.cli.progress import showing_progress
    from diffclip.data.check import check as look
    from diffclip.data.corpus import open_corpus
    from diffclip.files import check_writable

    for file in (output, page):
        if file is not None:
            check_writable(file)
    corpus = open_corpus(shards, caption_key)
    try:
        total = min(sample or corpus.samples, corpus.samples)
        with showing_progress("Reading", {"samples": total}) as advance:
            found, numbers = look(
                corpus,
                sample,
                seed,
                workers or os.cpu_count() or 1,
                context_length,
                lambda done: advance("samples", done, None),
            )
        _show(found)
        if output is not None:
            import json

            from diffclip.files import write_text

            write_text(output, json.dumps(found.to_json(), indent=1) + "\n")
            typer.echo(f"wrote {output}")
        if page is not None:
            from diffclip.report.check_page import write_check_page

            command = _command(shards, output, page, sample, seed, context_length, caption_key)
            typer.echo(f"wrote {write_check_page(page, found, numbers, corpus, command)}")
    finally:
        corpus.close()


def _show(found: Check) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from diffclip.data.check_summary import clean, headline, rows

    table = Table(
        title=Text(headline(found)), box=box.SIMPLE, show_header=False, title_justify="left", pad_edge=False
    )
    table.add_column("what", no_wrap=True)
    table.add_column("answer", overflow="fold")
    for what, answer in rows(found):
        table.add_row(Text(what), Text(clean(answer)))
    console = Console()
    if not console.is_terminal:
        console.width = 140
    console.print(table)
    for what, faults in (
        ("Shards", found.shards.broken),
        ("Without picture or caption", found.lacking),
        ("Unreadable", [*found.unreadable_pictures, *found.unreadable_captions]),
    ):
        _name(what, faults)


def _name(what: str, faults: list[Fault]) -> None:
    """The first of `faults`, a line each."""
    from diffclip.data.check_summary import clean

    if not faults:
        return
    more = f", the first {_NAMED} of {len(faults):,}" if len(faults) > _NAMED else ""
    typer.echo(f"{what}{more}:")
    for fault in faults[:_NAMED]:
        typer.echo(f"  {clean(' '.join(str(fault).split()))}")


def _command(
    shards: list[str],
    output: Path | None,
    page: Path,
    sample: int | None,
    seed: int,
    context_length: int,
    caption_key: str,
) -> str:
    """The command line that makes the page again."""
    words: list[object] = ["diffclip", "data", "check", *shards]
    words += [] if output is None else ["--output", output]
    words += ["--page", page]
    words += [] if sample is None else ["--sample", sample, "--seed", seed]
    words += [] if context_length == _CONTEXT else ["--context-length", context_length]
    words += [] if caption_key == "caption" else ["--caption-key", caption_key]
    return shlex.join(map(str, words))
