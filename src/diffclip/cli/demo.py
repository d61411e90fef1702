"""`diffclip demo`: the whole way on the built-in scenes, in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/demo"),
) -> None:
    """Draw scenes, train CLIP and DiffCLIP on them side by side, evaluate both, and write a page.

    Example: diffclip demo --folder runs/demo

    A second call reuses what is there. About four minutes on 2 CPU cores.
    """
    from diffclip.errors import require_group

    require_group("train", "lightning", "tensorboard", "matplotlib")
    from diffclip.demo import run_demo

    run_demo(folder, say=print)
