"""`diffclip data check`: count the usable samples of shards."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffclip.cli.console import print_table
from diffclip.errors import InputError
from diffclip.files import check_writable, cores, printable, write_text

if TYPE_CHECKING:
    from diffclip.data.check import Check, Spread

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
    workers: Annotated[
        int | None, typer.Option(help="Processes that read; default: one per core.", min=1)
    ] = None,
    caption_key: Annotated[
        str, typer.Option(help="Key of the captions in .json, as in a recipe.")
    ] = "caption",
) -> None:
    """Count the samples of shards: broken ones, sizes, lengths of captions, duplicates.

    Every sample is read as training reads it. Memory grows by about 50 bytes per sample: for hundreds of
    millions of samples use --sample N.

    Example: diffclip data check sets/cc3m/train --output cc3m.json

    The exit code is 0 if any sample can be used, and 2 if none can.
    """
    from diffclip.data.corpus import Corpus

    if output is not None:
        if output.suffix == ".tar":  # which a pattern without quotes may name
            raise InputError(f"--output {output} would replace a shard: name a .json file")
        check_writable(output)
    corpus = Corpus(shards, caption_key)
    from diffclip.cli.progress import showing_progress
    from diffclip.data.check import check as look

    total = min(sample or corpus.samples, corpus.samples)
    with showing_progress("Reading", {"samples": total}) as advance:
        found = look(corpus, sample, workers or cores(), lambda done: advance("samples", done, None))
    print_table(("", "value"), "ll", _rows(found))
    unreadable = [*found.images_broken, *found.captions_broken]
    for what, faults in (("Skipped", found.skipped), ("Unreadable", unreadable)):
        if faults:
            more = f", the first {_NAMED} of {len(faults):,}" if len(faults) > _NAMED else ""
            typer.echo(f"{what}{more}:")
        for fault in faults[:_NAMED]:
            typer.echo(f"  {printable(str(fault))}")
    if output is not None:
        write_text(output, json.dumps(asdict(found), indent=1) + "\n")
        typer.echo(f"wrote {output}")


def _rows(found: Check) -> list[tuple[str, str]]:
    from diffclip.data.check import CONTEXT_LENGTH, LEARNED_AT

    return [
        ("shards", f"{found.shards:,}"),
        ("faults in the shards", f"{len(found.skipped):,}"),
        ("samples with image and caption", f"{found.usable:,}"),
        ("read", "all" if found.read == found.usable else f"{found.read:,}, drawn at random"),
        ("can be trained on", _of(found.whole, found.read)),
        ("unreadable images", _of(len(found.images_broken), found.read)),
        ("unreadable captions", _of(len(found.captions_broken), found.read)),
        ("shorter edge", f"{_middle(found.shorter_edge)} px; below {LEARNED_AT}: {_of(found.small, found.whole)}"),
        ("captions", f"{found.captions:,}, {found.captions / found.whole:.2g} per image"),
        ("tokens", _middle(found.tokens)),
        (f"cut at {CONTEXT_LENGTH} tokens", _of(found.truncated, found.captions)),
        ("same pixels as another", _duplicates(found.exact, found.whole)),
        ("looks like another", _duplicates(found.near, found.whole)),
    ]  # fmt: skip


def _of(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / max(whole, 1):.3g} %)"


def _middle(values: Spread) -> str:
    shown = {name: f"{value:,.0f}" for name, value in values.items()}
    return (
        f"median {shown['median']}, 90 % within {shown['5 %']} to {shown['95 %']}, "
        f"min {shown['min']}, max {shown['max']}"
    )


def _duplicates(groups: list[list[str]], whole: int) -> str:
    return f"{_of(sum(map(len, groups)) - len(groups), whole)}, groups: {len(groups):,}"
