"""Checkpoints: folders that appear whole, with `last`, `previous` and `best` as links to them.

`checkpoints/step_00000120/` is a saved model (`config.json`, `model.safetensors`) with the optimiser's state in one
file a process that holds a share of it (`optimiser-00000-of-00001.safetensors`), `training.pt` (how far the run is, and
the generators of each process) and `files.json` (size and checksum of the others). A folder is written under a
temporary name and renamed, and only then is the link moved, so that `last` names a whole checkpoint. What happens to
the files later, on a disk that breaks or in a copy that was cut off, is found out before they are used.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from diffclip.errors import InputError
from diffclip.files import disk_errors, flush
from diffclip.model import CLIP
from diffclip.pickled import read_pickle
from diffclip.training.exchange import all_do, first_does, share
from diffclip.training.intact import list_files, newest_whole, set_aside
from diffclip.training.sharded import load_optimiser, save_optimiser, whole_state
from diffclip.weights import save_torch, save_weights

STATE_FILE = "training.pt"
LINKS = ("last", "best", "previous")


@dataclass
class Progress:
    """How far a run is. `batch` counts the batches of `epoch` (from 0) that are done; `order` tells the order of the
    samples from others, and `processes` how many share it out."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    samples: int = 0
    best_score: float | None = None
    order: str | None = None
    processes: int = 1


def save_checkpoint(
    fabric: Any,
    run: Path,
    model: CLIP,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    best: bool = False,
    keep_every: int | None = None,
) -> Path:
    """Write a checkpoint of `run` and let `last` (and `best`) name it; all processes call it, and see the same folder.

    Checkpoints that no link names are removed, but those of every `keep_every`-th step.

    Raises:
        InputError: no space left on the device, or no permission. The checkpoints before stay as they were.
    """
    folder, temporary = first_does(fabric, lambda: _plan(run, progress))
    if temporary is not None:
        try:
            _fill(fabric, temporary, model, optimiser, progress)
            first_does(fabric, lambda: _put(temporary, folder))
        finally:
            if fabric.global_rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
    first_does(fabric, lambda: _name(run, folder, best, keep_every))
    return folder


def _fill(
    fabric: Any, temporary: Path, model: CLIP, optimiser: torch.optim.Optimizer, progress: Progress
) -> None:
    """Write what each process holds."""
    first = fabric.global_rank == 0
    generators = share(fabric, _generators())
    weights = whole_state(model, keep=first)

    def write() -> None:
        with disk_errors(temporary.parent):
            save_optimiser(temporary, model, optimiser, fabric.global_rank, fabric.world_size)
            if first:
                save_weights(model, temporary, weights)
                save_torch({"progress": asdict(progress), "generators": generators}, temporary / STATE_FILE)

    all_do(fabric, write)


def _put(temporary: Path, folder: Path) -> None:
    with disk_errors(folder):
        list_files(temporary)
        flush(temporary)
        os.replace(temporary, folder)


def _name(run: Path, folder: Path, best: bool, keep_every: int | None) -> None:
    before = target_of(run, "last")
    if before not in (None, folder):
        link(run, "previous", before)
    link(run, "last", folder)
    if best:
        link(run, "best", folder)
    _remove_unkept(run, keep_every)


def _plan(run: Path, progress: Progress) -> tuple[Path, Path | None]:
    """The checkpoint's folder, and the temporary one to fill first, None where the folder is there already."""
    folder = run / "checkpoints" / f"step_{progress.step:08d}"
    with disk_errors(folder):
        if folder in linked(run) and _progress_in(folder) != progress:
            # the same weights, further in the data: the last batches were all broken
            folder = folder.with_name(f"{folder.name}_epoch_{progress.epoch}_batch_{progress.batch}")
        if folder.is_dir() and folder not in linked(run):  # a kill came between this folder and its link
            shutil.rmtree(folder)
        if folder.exists():
            return folder, None
        for left in folder.parent.glob(".*.tmp"):  # of a run that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        temporary = folder.with_name(f".{uuid.uuid4().hex[:8]}.tmp")
        temporary.mkdir(parents=True)
    return folder, temporary


def withdraw_checkpoint(run: Path, step: int) -> Path | None:
    """Forget the last checkpoint if it is the state after `step`, which proved bad; returns the last that remains."""
    last, previous = target_of(run, "last"), target_of(run, "previous")
    if last is not None and read_progress(run).step == step:
        for name in ("last", "best"):
            if target_of(run, name) == last:
                (run / "checkpoints" / name).unlink()
        if previous is not None and previous != last:
            link(run, "last", previous)
        if last not in linked(run):
            _remove(last)
    return target_of(run, "last")


def restore_checkpoint(
    fabric: Any, folder: Path, model: CLIP, optimiser: torch.optim.Optimizer, seed: int
) -> Progress:
    """Set optimiser and generators as they were at `folder`; returns how far the run was. Weights are loaded before the
    model is shared out (`diffclip.load_weights`).

    With another number of processes than then, each draws its random numbers anew from the run's `seed` and the step.

    Raises:
        InputError: it does not belong to this model.
    """
    state = read_state(folder)
    try:
        progress = Progress(**state["progress"])
        generators = state["generators"]
        if len(generators) == fabric.world_size:
            mine = generators[fabric.global_rank]
            torch.set_rng_state(mine["torch"])
            if torch.cuda.is_available() and mine["cuda"] is not None:
                torch.cuda.set_rng_state(mine["cuda"], fabric.device)
        else:
            torch.manual_seed(hash((seed, progress.step, fabric.global_rank)) % 2**63)
    except (KeyError, ValueError, TypeError, RuntimeError, IndexError) as error:
        raise InputError(
            f"{folder / STATE_FILE} is no training state of this model ({error}): start a new run"
        ) from None
    if not (folder.parent / "best").exists():  # it was damaged, or proved bad
        progress.best_score = None
    load_optimiser(folder, model, optimiser)
    return progress


def read_progress(run: Path) -> Progress:
    """How far the last checkpoint of `run` is.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    folder = run / "checkpoints" / "last"
    if not (folder / STATE_FILE).is_file():
        raise InputError(f"{run} has no checkpoint 'last' yet: start it without --resume")
    progress = _progress_in(folder)
    if progress is None:
        raise InputError(f"{folder / STATE_FILE} is no training state: start a new run")
    return progress


def _progress_in(folder: Path) -> Progress | None:
    try:
        return Progress(**read_state(folder)["progress"])
    except (KeyError, TypeError):
        return None


def read_state(folder: Path) -> dict[str, Any]:
    """The training state in a checkpoint's folder.

    Raises:
        InputError: it cannot be read.
    """
    state = read_pickle(folder / STATE_FILE)
    return state if isinstance(state, dict) else {}


def _generators() -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    return {"torch": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state() if cuda else None}


def target_of(run: Path, name: str) -> Path | None:
    """The checkpoint that the link `name` of `run` points to."""
    place = run / "checkpoints" / name
    return place.parent / os.readlink(place) if place.is_symlink() else None


def linked(run: Path) -> set[Path]:
    """The checkpoints of `run` that a link points to."""
    return {target for name in LINKS if (target := target_of(run, name)) is not None}


def _remove_unkept(run: Path, keep_every: int | None) -> None:
    for folder in set((run / "checkpoints").glob("step_*")) - linked(run):
        step = int(folder.name.split("_")[1])
        if keep_every is None or step % keep_every:
            with suppress(InputError):  # what cannot be removed is no reason to stop a run
                _remove(folder)


def _remove(folder: Path) -> None:
    """Take a checkpoint away at once: one that is being removed must not be taken for a whole one."""
    with disk_errors(folder):
        aside = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def link(run: Path, name: str, folder: Path) -> None:
    """Let the link `name` of `run` point to `folder`."""
    place = run / "checkpoints" / name
    temporary = place.with_name(f".{name}.tmp")
    with disk_errors(place):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(folder.name)
        os.replace(temporary, place)


def choose_checkpoint(run: Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint of `run` that is whole, which `last` then names; None where the run has made none yet.

    Damaged ones are told and set aside.

    Raises:
        InputError: there are checkpoints, and none is whole.
    """
    folders = sorted((run / "checkpoints").glob("step_*"), reverse=True)
    if not folders:
        return None
    found, damaged = newest_whole(folders)
    faults = "; ".join(f"{folder} is damaged ({fault})" for folder, fault in damaged.items())
    if found is None:
        raise InputError(f"{faults}: no checkpoint of the run is whole, start a new run in another folder")
    if damaged:
        say(f"{faults}: going on from {found.name}")
    for folder in damaged:
        for name in LINKS:
            if target_of(run, name) == folder:
                (run / "checkpoints" / name).unlink()
        if folder.is_dir():
            set_aside(folder)
    link(run, "last", found)
    return found
