"""The folder of a run of one stage: check it, claim it, and list its checkpoints.

It has recipe.yaml, conversations.sha256, metrics.jsonl, the Trainer's checkpoint-N and, at the end, model.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

from diffclip.errors import InputError
from diffclip.files import write_text
from diffclip.training.run_folder import (
    LOCK_FILE,
    METRICS_FILE,
    RECIPE_FILE,
    describe_change,
    names_in,
)
from diffclip.vlm.files import MODEL_FOLDER
from diffclip.vlm.recipe import STAGES, VLMRecipe, read_vlm_recipe

# a resumed run may have other values of these keys, because they change its numbers by rounding at most
_FREE_KEYS = {"gradient_checkpointing", "workers"} | {
    f"stage{stage}.{key}"
    for stage in STAGES
    for key in ("json", "images", "per_device_batch_size", "save_every", "start")
}
_SAMPLES_FILE = "conversations.sha256"


def is_finished(run: Path) -> bool:
    """Return whether the run in this folder has saved its model."""
    return (run / MODEL_FOLDER).is_dir() and (run / RECIPE_FILE).is_file()


def checkpoints(run: Path) -> list[Path]:
    """List the complete checkpoints, sorted by step: trainer_state.json, which is written last, can be read.

    A folder that a user adds, such as checkpoint-500-keep, is not listed.
    """
    steps = {}
    for file in run.glob("checkpoint-*/trainer_state.json"):
        with suppress(OSError, ValueError):
            json.loads(file.read_text(encoding="utf-8"))
            steps[int(file.parent.name.removeprefix("checkpoint-"))] = file.parent
    return [steps[step] for step in sorted(steps)]


def check_run(recipe: VLMRecipe, run: Path, resume: bool) -> None:
    """Check, without writing anything, that a run of `recipe` (with one stage) may start or continue in `run`."""
    names = names_in(run) - {LOCK_FILE}
    if not resume or RECIPE_FILE not in names:
        if not resume and (is_finished(run) or checkpoints(run)):
            raise InputError(
                f"{run} holds a run already: add --resume to go on with it, or choose another --run"
            )
        # a run that stopped before its first checkpoint leaves these files
        files = {name for name in names if not name.startswith("checkpoint-")}
        if files - {RECIPE_FILE, METRICS_FILE, _SAMPLES_FILE} or (names and RECIPE_FILE not in names):
            raise InputError(f"{run} holds other files: choose a new or an empty folder for --run")
        return
    started = read_vlm_recipe(run / RECIPE_FILE)
    if (started.stage1 is None) != (recipe.stage1 is None):
        stage = 1 if started.stage1 is not None else 2
        raise InputError(f"{run} holds a run of stage {stage}: give --stage {stage}, or choose another --run")
    before, now = started.model_dump(by_alias=True), recipe.model_dump(by_alias=True)
    if change := describe_change(before, now, _FREE_KEYS):
        raise InputError(f"{run} was started with {change}: resume with the same recipe")


def claim_run(recipe: VLMRecipe, run: Path, samples: str) -> None:
    """Prepare the locked folder that `check_run` has checked.

    `samples` is the digest of the conversations; their file may have moved.
    """
    file, complete = run / _SAMPLES_FILE, checkpoints(run)
    # remove checkpoints that were not written to the end: training may not save at that step again
    for folder in run.glob("checkpoint-*"):
        if folder.name.partition("-")[2].isdecimal() and folder not in complete:
            shutil.rmtree(folder)
    if not complete:
        write_text(run / RECIPE_FILE, recipe.to_yaml())
        write_text(file, samples)
    elif file.is_file() and file.read_text() != samples:
        raise InputError(f"{run} was started with other conversations: resume with the same JSON")
