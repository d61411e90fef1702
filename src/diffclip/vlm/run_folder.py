"""The folder of a run of one stage: recipe.yaml, conversations, metrics.jsonl, checkpoint-N and, at the end, model."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

from diffclip.errors import InputError
from diffclip.files import write_text
from diffclip.training.run_folder import LOCK_FILE, RECIPE_FILE, describe_change, names_in
from diffclip.vlm.files import MODEL_FOLDER
from diffclip.vlm.settings import STAGES, VLMRecipe, read_vlm_recipe

# a resumed run may have other values of these keys, because they change its numbers by rounding at most
_FREE_KEYS = {"gradient_checkpointing", "workers"} | {
    f"stage{stage}.{key}"
    for stage in STAGES
    for key in ("images", "per_device_batch_size", "save_every", "start")
}


def is_finished(run: Path) -> bool:
    """Return whether the run in this folder has saved its model."""
    return (run / MODEL_FOLDER).is_dir() and (run / RECIPE_FILE).is_file()


def checkpoints(run: Path) -> list[Path]:
    """List the complete checkpoints, sorted by step: trainer_state.json, which is written last, can be read."""
    steps = {}
    for file in run.glob("checkpoint-*/trainer_state.json"):
        with suppress(OSError, ValueError):
            json.loads(file.read_text(encoding="utf-8"))
            steps[int(file.parent.name.partition("-")[2])] = file.parent
    return [steps[step] for step in sorted(steps)]


def check_run(recipe: VLMRecipe, run: Path, resume: bool) -> None:
    """Check, without writing anything, that a run of `recipe` (with one stage) may start or continue in `run`."""
    names = names_in(run)
    if not resume and (is_finished(run) or checkpoints(run)):
        raise InputError(f"{run} holds a run already: add --resume to go on with it, or choose another --run")
    if resume and RECIPE_FILE in names:
        started = read_vlm_recipe(run / RECIPE_FILE)
        if (started.stage1 is None) != (recipe.stage1 is None):
            stage = 1 if started.stage1 is not None else 2
            raise InputError(
                f"{run} holds a run of stage {stage}: give --stage {stage}, or choose another --run"
            )
        before, now = started.model_dump(by_alias=True), recipe.model_dump(by_alias=True)
        if checkpoints(run) and (change := describe_change(before, now, _FREE_KEYS)):
            raise InputError(f"{run} was started with {change}: resume with the same recipe")
    elif names and LOCK_FILE not in names:
        raise InputError(f"{run} holds other files: choose a new or an empty folder for --run")


def claim_run(recipe: VLMRecipe, run: Path) -> None:
    """Prepare the locked folder that `check_run` has checked."""
    complete = checkpoints(run)
    # remove checkpoints that were not written to the end: training may not save at that step again
    for folder in run.glob("checkpoint-*"):
        if folder.name.partition("-")[2].isdecimal() and folder not in complete:
            shutil.rmtree(folder)
    if not complete:
        write_text(run / RECIPE_FILE, recipe.to_yaml())
