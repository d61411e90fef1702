"""`diffclip vlm demo`: from nothing to a language model that sees scenes, CLIP's against DiffCLIP's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/vlm_scenes"),
    seeds: Annotated[
        int, typer.Option(min=1, help="Towers and language models of each kind, with the seeds from 0 on.")
    ] = 1,
) -> None:
    """Train CLIP and DiffCLIP on drawn scenes, teach a language model to see through each, and ask both what is there.

    Example: diffclip vlm demo --folder runs/vlm_scenes

    What is there is used again, and what was stopped goes on. About 20 minutes on 2 CPU cores, for each seed more about
    16 minutes.
    """
    from diffclip.errors import require_group

    require_group("train", "lightning", "tensorboard", "matplotlib")
    require_group("vlm", "transformers", "accelerate")
    from diffclip.cli.vlm_demo_run import run_vlm_demo

    run_vlm_demo(folder, range(seeds), say=print)
