"""`diffclip demo`: the whole way on the built-in scenes, in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[Path, typer.Option(help="Folder for scenes, runs and page.")] = Path("runs/demo"),
    seeds: Annotated[
        int, typer.Option(min=1, help="Training seeds per model; differences are tested from two seeds on.")
    ] = 1,
) -> None:
    """Draw scenes, train CLIP and DiffCLIP on them, evaluate both, and write a page.

    Example: diffclip demo --folder runs/demo

    A second call reuses finished parts. One seed takes five to six minutes on 2 CPU cores.
    """
    from diffclip.errors import StoppedError, require_group

    require_group("train", "lightning", "tensorboard", "matplotlib")
    from diffclip.cli.evaluate_table import show_records
    from diffclip.demo import run_demo

    try:
        page, records = run_demo(folder, print, seeds)
    except StoppedError as error:
        raise StoppedError(f"{folder}: stopped, the state is saved: the same command goes on") from error
    show_records(records, {}, headlines_only=True)
    print(f"The page: {page}")
