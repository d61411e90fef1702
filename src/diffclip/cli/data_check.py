"""`diffclip data check`: count the usable samples of shards."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffclip.cli.console import print_table
from diffclip.files import check_not_input, check_writable, cores, printable, write_text

if TYPE_CHECKING:
    from diffclip.data.check import Check, Spread
    from diffclip.errors import Fault

_NAMED = 10


def check(
    shards: Annotated[
        list[str],
        typer.Argument(
            help="Shards: folders, files, ranges '{000..127}.tar' or addresses, as a recipe names them.",
            metavar="SHARDS...",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Write the whole result to this file, as JSON.", metavar="FILE")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(help="Read this many samples, drawn at random; default: all.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of --sample.", min=0)] = 0,
    workers: Annotated[int, typer.Option(help="Processes that read; 0: one per core.", min=0)] = 0,
    caption_key: Annotated[
        str, typer.Option(help="Key of the captions in .json, as in a recipe.")
    ] = "caption",
) -> None:
    """Count the samples of shards: broken ones, sizes, lengths of captions, duplicates.

    Every sample is read as training reads it. Memory grows by about 50 bytes a sample: of hundreds of millions, read a
    --sample.

    Example: diffclip data check sets/cc3m/train --output cc3m.json

    The exit code is 0 if any sample can be used, and 2 if none can.
    """
    from diffclip.cli.progress import showing_progress
    from diffclip.data.check import check as look
    from diffclip.data.corpus import Corpus

    if output is not None:
        check_writable(output)
    corpus = Corpus(shards, caption_key)
    try:
        if output is not None:
            check_not_input(output, corpus.files())
        total = min(sample or corpus.samples, corpus.samples)
        with showing_progress("Reading", {"samples": total}) as advance:
            processes = workers or cores()
            found = look(corpus, sample, seed, processes, advance=lambda done: advance("samples", done, None))
        _show(found)
        if output is not None:
            write_text(output, json.dumps(asdict(found), indent=1) + "\n")
            typer.echo(f"wrote {output}")
    finally:
        corpus.close()


def rows(found: Check) -> list[tuple[str, str]]:
    """Return the summary as rows of name and value."""
    return [
        ("shards", f"{found.shards:,}"),
        ("faults in the shards", f"{len(found.skipped):,}"),
        ("samples with image and caption", f"{found.usable:,}"),
        ("read", "all" if found.seed is None else f"{found.read:,}, drawn with seed {found.seed}"),
        ("can be trained on", _of(found.whole, found.read)),
        ("unreadable images", _of(len(found.images_broken), found.read)),
        ("unreadable captions", _of(len(found.captions_broken), found.read)),
        ("shorter edge", f"{_middle(found.shorter_edge)} px; below 224: {_of(found.small, found.whole)}"),
        ("captions", f"{found.captions:,}, {found.captions / found.whole:.2g} an image"),
        ("words", _middle(found.words)),
        ("tokens", _middle(found.tokens)),
        (f"cut at {found.context_length} tokens", _of(found.truncated, found.captions)),
        ("same pixels as another", _duplicates(found.exact, found.whole)),
        ("looks like another", _duplicates(found.near, found.whole)),
    ]  # fmt: skip


def _of(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / max(whole, 1):.3g} %)"


def _middle(values: Spread) -> str:
    if values["min"] == values["max"]:
        return f"always {values['median']:,.0f}"
    shown = {name: f"{value:,.0f}" for name, value in values.items()}
    return (
        f"median {shown['median']}, 90 % within {shown['5 %']} to {shown['95 %']}, "
        f"all within {shown['min']} to {shown['max']}"
    )


def _duplicates(groups: list[list[str]], whole: int) -> str:
    found = f", {len(groups):,} group{'s' * (len(groups) != 1)}" if groups else ""
    return f"{_of(sum(len(group) - 1 for group in groups), whole)}{found}"


def _show(found: Check) -> None:
    print_table(("", "value"), "ll", rows(found))
    _name("Skipped", found.skipped)
    _name("Unreadable", [*found.images_broken, *found.captions_broken])


def _name(what: str, faults: list[Fault]) -> None:
    """Print the first of `faults`, one per line."""
    if not faults:
        return
    more = f", the first {_NAMED} of {len(faults):,}" if len(faults) > _NAMED else ""
    typer.echo(f"{what}{more}:")
    for fault in faults[:_NAMED]:
        typer.echo(f"  {printable(str(fault))}")
