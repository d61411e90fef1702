"""The folder of a run: whose it is, and whether a recipe may go on in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from diffclip.errors import InputError
from diffclip.files import disk_errors, lock_file, write_text
from diffclip.training.about import ABOUT_FILE
from diffclip.training.recipe import Recipe, read_recipe, to_yaml
from diffclip.training.telemetry import METRICS_FILE, TENSORBOARD_FOLDER, VALIDATION_FILE

RECIPE_FILE, LOCK_FILE = "recipe.yaml", ".lock"
# keys that change nothing about the numbers of a run (but for the order of sums), so that a resumed run may have
# others; whether data that has moved is the same is seen by its order (`start.check_order`)
_FREE_KEYS = {
    *("checkpoint_every", "keep_every", "wandb", "micro_batch", "grad_checkpointing", "compile"),
    "attention_backend",
    *("data.train", "data.val"),
    *("data.workers", "data.cache", "data.cache_gb", "data.timeout", "data.expected_samples"),
}
# what a run that was stopped before its first checkpoint may have left
_OF_A_RUN = {
    *(RECIPE_FILE, METRICS_FILE, VALIDATION_FILE, TENSORBOARD_FOLDER),
    *(ABOUT_FILE, "checkpoints", "report.html", "wandb"),
}


def claim_folder(recipe: Recipe, run: Path, resume: bool) -> IO[str]:
    """Make `run` this recipe's folder, or see that it is; what keeps other processes out of it until it is closed.

    Raises:
        InputError: it holds a run and `resume` is not set; or it is set, and there is no run or one of another recipe;
            or another process trains there.
    """
    if resume:
        check_resumable(recipe, run)
        return lock_folder(run)
    check_free(recipe, run)
    with disk_errors(run):
        run.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(run)
    check_free(recipe, run)  # another process may have been here meanwhile
    write_text(run / RECIPE_FILE, to_yaml(recipe))
    return lock


def check_free(recipe: Recipe, run: Path) -> None:
    """See, without writing anything, that a run of `recipe` may start in `run`.

    Raises:
        InputError: it holds a run, or other files.
    """
    if [*(run / "checkpoints").glob("step_*"), *(run / "checkpoints").glob("damaged_*")]:
        raise InputError(f"{run} holds a run already: add --resume to go on with it, or choose another --run")
    with disk_errors(run):
        found = {path.name for path in run.iterdir()} - {LOCK_FILE} if run.exists() else set()
    # a run that was killed in its first moments has left its recipe, and perhaps no more
    started = TENSORBOARD_FOLDER in found or _same_recipe(run / RECIPE_FILE, recipe)
    if found and not (found <= _OF_A_RUN and started):
        raise InputError(f"{run} holds other files: choose a new or an empty folder for --run")


def check_resumable(recipe: Recipe, run: Path) -> None:
    """See, without writing anything, that `run` is this recipe's folder.

    Raises:
        InputError: it holds no run, or one of another recipe.
    """
    _refuse(run, recipe_change(recipe, run))


def check_unchanged(run: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `InputError` for the first key of a recipe that is not as it was when the run started."""
    _refuse(run, _first_change(before, now))


def recipe_change(recipe: Recipe, run: Path) -> str | None:
    """The first key that a run's numbers depend on and that is not as it was when the run started, "lr=0.001, not
    0.002"; None where all are.

    Raises:
        InputError: the folder holds no run, or its recipe cannot be read.
    """
    if not (run / RECIPE_FILE).is_file():
        raise InputError(f"{run} holds no run to resume: start it without --resume")
    before, now = (_flat(r.model_dump()) for r in (read_recipe(run / RECIPE_FILE), recipe))
    return _first_change(
        *({key: own for key, own in r.items() if key not in _FREE_KEYS} for r in (before, now))
    )


def _first_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    return next(
        (f"{key}={before[key]}, not {value}" for key, value in now.items() if before[key] != value), None
    )


def _refuse(run: Path, change: str | None) -> None:
    if change is not None:
        raise InputError(f"{run} was started with {change}: resume with the same recipe")


def lock_folder(run: Path) -> IO[str]:
    """Keep other processes from training in `run` until this one ends, however it does, or the handle is closed.

    Raises:
        InputError: another process trains there.
    """
    handle = lock_file(run / LOCK_FILE)
    if isinstance(handle, str):
        raise InputError(f"{handle} trains in {run}: wait for it, or choose another --run")
    return handle


def _same_recipe(file: Path, recipe: Recipe) -> bool:
    try:
        return file.read_text(encoding="utf-8") == to_yaml(recipe)
    except (OSError, ValueError):
        return False


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        flat |= _flat(value, f"{prefix}{key}.") if key == "data" else {f"{prefix}{key}": value}
    return flat
