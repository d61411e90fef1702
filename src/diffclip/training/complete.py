"""A run brought to its end, from wherever it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from diffclip.training.checkpoint import STATE_FILE, read_progress
from diffclip.training.distributed import Hardware
from diffclip.training.loop import Outcome, train
from diffclip.training.recipe import Recipe
from diffclip.training.run_folder import check_resumable


def complete_run(
    recipe: Recipe,
    run: Path,
    say: Callable[[str], None],
    memory: bool = False,
    hardware: Hardware | None = None,
    spacing: float = 0.0,
) -> Outcome:
    """Train `recipe` in `run`; go on with a run that was stopped; use a finished one again. `say` tells which, `memory`
    keeps the images decoded, and `spacing` is as in `train`.

    Raises:
        InputError: as `train`, or the folder holds a run of another recipe.
    """
    started = (run / "checkpoints" / "last" / STATE_FILE).is_file()
    if started:
        check_resumable(recipe, run)
        progress = read_progress(run)
        if progress.epoch == recipe.epochs:
            say(f"{run.name}: reusing the finished run in {run}")
            return Outcome(run, progress)
    say(f"{run.name}: {'going on with' if started else 'training in'} {run}")
    return train(recipe, run, started, hardware, memory, spacing)
