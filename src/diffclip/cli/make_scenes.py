"""`diffclip data make-scenes`: draw the built-in set into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def make_scenes(
    folder: Annotated[Path, typer.Argument(help="Target folder; finished parts are reused.")],
    size: Annotated[int, typer.Option(help="Edge of the images in pixels, 16 or more.")] = 64,
    train: Annotated[int, typer.Option(help="Captioned images to train on.")] = 20_000,
    val: Annotated[int, typer.Option(help="Captioned images to validate on.")] = 1_000,
    test: Annotated[int, typer.Option(help="Captioned images to test on.")] = 1_000,
    seed: Annotated[int, typer.Option(help="Seed of the images.")] = 0,
    distractors: Annotated[
        int, typer.Option(help="Small objects in each image that no caption mentions, 0 to 64.")
    ] = 0,
    workers: Annotated[
        int | None, typer.Option(help="Processes that draw; default: one per core.", min=1)
    ] = None,
) -> None:
    """Draw the built-in set: captions, classes, shifted classes, minimal pairs and questions.

    Example: diffclip data make-scenes data/scenes --train 20000 --seed 1
    """
    from diffclip.cli.progress import showing_progress
    from diffclip.files import cores
    from diffclip.scenes import write_scenes

    with showing_progress("Drawing scenes", {}) as progress:
        at_once = workers or cores()
        drawn = write_scenes(folder, size, train, val, test, seed, progress, at_once, distractors)
    typer.echo(f"Drew the scenes in {folder}." if drawn else f"{folder} has these scenes already: reused.")
