"""The folder of a run: recipe.yaml, metrics.jsonl, checkpoint-N (the Trainer's) and, at the end, model."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import IO, Any

from diffclip.errors import InputError
from diffclip.files import disk_errors, write_text
from diffclip.training.run_folder import LOCK_FILE, RECIPE_FILE, check_unchanged, lock_folder
from diffclip.training.telemetry import METRICS_FILE
from diffclip.vlm.folders import MODEL_FOLDER
from diffclip.vlm.recipe import VLMRecipe, read_vlm_recipe, to_yaml

# the Trainer writes it last, so a checkpoint in which it can be read is whole
STATE_FILE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# keys that change nothing about the numbers of a run but for the order of sums, so that a resumed run may have others
_FREE_KEYS = {"gradient_checkpointing", "deepspeed", "workers"}
_FREE_STAGE_KEYS = {"json", "images", "expected_samples", "per_device_batch_size", "save_every", "start"}


def of_stage(recipe: VLMRecipe, stage: int) -> VLMRecipe:
    """The recipe without the other stage: what a run's own recipe.yaml holds."""
    return recipe.model_copy(update={f"stage{3 - stage}": None})


def is_finished(run: Path) -> bool:
    """Whether the run in this folder has made its last step and saved its model."""
    return (run / MODEL_FOLDER).is_dir() and (run / RECIPE_FILE).is_file()


def last_checkpoint(run: Path) -> Path | None:
    """The checkpoint with the most steps that is whole."""
    return max(
        (folder for folder in run.glob("checkpoint-*") if _step(folder) and _is_whole(folder)),
        key=_step,
        default=None,
    )


def check_run(recipe: VLMRecipe, run: Path, resume: bool) -> None:
    """See, without writing anything, that a run of `recipe`, which has one stage, may start or go on in `run`.

    Raises:
        InputError: without `resume`, the folder holds something; with it, no run, or one of another recipe.
    """
    with disk_errors(run):
        found = {path.name for path in run.iterdir()} - {LOCK_FILE} if run.exists() else set()
    if not resume:
        if is_finished(run):
            raise InputError(
                f"{run} holds a finished run: its model is {run / MODEL_FOLDER}; choose another --run"
            )
        if last_checkpoint(run):
            raise InputError(
                f"{run} holds a run already: add --resume to go on with it, or choose another --run"
            )
        # a run that ended before its first checkpoint leaves no more than this
        begun = RECIPE_FILE in found and all(
            name in (RECIPE_FILE, METRICS_FILE) or _CHECKPOINT.fullmatch(name) for name in found
        )
        if found and not begun:
            raise InputError(f"{run} holds other files: choose a new or an empty folder for --run")
        return
    if RECIPE_FILE not in found:
        raise InputError(f"{run} holds no run to resume: start it without --resume")
    started = read_vlm_recipe(run / RECIPE_FILE)
    if (started.stage1 is None) != (recipe.stage1 is None):
        stage = 1 if started.stage1 is not None else 2
        raise InputError(f"{run} holds a run of stage {stage}: give --stage {stage}, or choose another --run")
    check_unchanged(run, _deciding(started), _deciding(recipe))


def claim_run(recipe: VLMRecipe, run: Path, resume: bool) -> IO[str]:
    """Make `run` this recipe's folder; what keeps other processes out of it until it is closed.

    Raises:
        InputError: as `check_run`, or another process trains there.
    """
    with disk_errors(run):
        run.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(run)
    check_run(recipe, run, resume)  # another process may have been here meanwhile
    if not resume:
        write_text(run / RECIPE_FILE, to_yaml(recipe))
    for folder in run.glob("checkpoint-*"):
        if _step(folder) and not _is_whole(folder):
            shutil.rmtree(folder)  # cut off while it was written
    return lock


def _is_whole(folder: Path) -> bool:
    try:
        json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def _step(folder: Path) -> int:
    match = _CHECKPOINT.fullmatch(folder.name)
    return int(match[1]) if match else 0


def _deciding(recipe: VLMRecipe) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in recipe.model_dump(mode="json", by_alias=True).items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": own for inner, own in value.items() if inner not in _FREE_STAGE_KEYS}
        elif key not in _FREE_KEYS:
            flat[key] = value
    return flat
