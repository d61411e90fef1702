"""The checkpoints of a run that may still be going, as they appear."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from diffclip.errors import InputError
from diffclip.training.checkpoint import STATE_FILE, read_progress
from diffclip.training.recipe import read_recipe

_SECONDS = 2.0


def checkpoints_of(
    run: Path, waiting: Callable[[], None] | None = None, seconds: float = _SECONDS
) -> Iterator[Path]:
    """Each checkpoint folder of `run` once, oldest first, until the run has made its last epoch.

    A run keeps its last, previous and best checkpoint, so one that was replaced while its predecessor was being looked
    at never comes; and one that comes may be gone before it is read.

    Args:
        waiting: called whenever there is nothing new, before each pause.
        seconds: the pause.

    Raises:
        InputError: `run` is no run folder.
    """
    epochs = read_recipe(_recipe(run)).epochs
    seen: set[Path] = set()
    while True:
        # asked before the look: a run that ends in between has left its last checkpoint for it
        finished = _last_epoch(run) >= epochs
        found = [folder for folder in sorted((run / "checkpoints").glob("step_*")) if folder not in seen]
        found = [folder for folder in found if (folder / STATE_FILE).is_file()]
        for folder in found:
            seen.add(folder)
            yield folder
        if found:
            continue
        if finished:
            return
        if waiting:
            waiting()
        time.sleep(seconds)


def _recipe(run: Path) -> Path:
    if not (run / "recipe.yaml").is_file():
        raise InputError(
            f"{run} is no run folder (it has no recipe.yaml): give the one that is being trained in"
        )
    return run / "recipe.yaml"


def _last_epoch(run: Path) -> int:
    """How many epochs the last checkpoint has behind it; -1 before there is one."""
    try:
        return read_progress(run).epoch
    # no checkpoint yet, or it was replaced by the next one while it was read
    except (InputError, OSError):
        return -1
