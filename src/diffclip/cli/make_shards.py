"""`diffclip data make-shards`: shards to train on from a folder of images with captions."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def make_shards(
    source: Annotated[Path, typer.Argument(help="Folder of images, at any depth.")],
    folder: Annotated[Path, typer.Argument(help="Folder of the shards; finished shards are reused.")],
    captions: Annotated[
        Path | None,
        typer.Option(
            help="File of captions: CSV, TSV, JSON lines, COCO's JSON, Flickr's token file. Default: captions.… in "
            "SOURCE, or one file per split (…_train_….txt), each with a folder of its own.",
            metavar="FILE",
        ),
    ] = None,
    edge: Annotated[
        int | None, typer.Option(help="Scale images down to this shorter edge, in pixels.", min=1)
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per core.", min=1)] = None,
) -> None:
    """Make shards to train on from a folder of images with captions.

    Example: diffclip data make-shards sets/flickr8k sets-80/flickr8k --edge 80

    Example: diffclip data make-shards photos shards --captions photos/captions.csv

    After a stop the same command continues. Images that are missing, broken or without captions are left out and named.
    """
    from diffclip.cli.console import say_skipped
    from diffclip.cli.progress import showing_progress
    from diffclip.data.captions import read_captions
    from diffclip.data.make_shards import find_captions
    from diffclip.data.make_shards import make_shards as make
    from diffclip.files import cores, write_text

    files = {"": captions} if captions else find_captions(source)
    found = {split: read_captions(file) for split, file in files.items()}
    for split, texts in found.items():
        place = folder / split
        with showing_progress(f"Writing {place.name}", {"images": len(texts)}) as advance:
            made = make(source, place, texts, edge, workers or cores(), advance)
        typer.echo(
            f"{made.samples:,} images with {made.captions:,} captions in {made.shards} "
            f"shard{'s' * (made.shards != 1)} in {place}; {len(made.faults):,} left out"
        )
        say_skipped("images", made.faults)
    if "" not in found:
        write_text(folder / "dataset_type.txt", "retrieval\n")
    first = folder / next(iter(found))
    typer.echo(f"Next: diffclip data check {shlex.quote(str(first))}")
