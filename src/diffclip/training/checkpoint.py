"""Checkpoints: folders that appear whole, with `last`, `previous` and `best` as links to them.

`checkpoints/step_00000120/` is a saved model (`config.json`, `model.safetensors`) with `training.pt`, the state of the
optimiser, the generators and the place in the data. A folder is written under a temporary name and renamed, and only
then is the link moved, so that `last` always names a whole checkpoint.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from diffclip.errors import InputError
from diffclip.files import disk_errors, write_atomically
from diffclip.model import CLIP
from diffclip.pickled import read_pickle
from diffclip.weights import load_weights, save_torch, save_weights

STATE_FILE = "training.pt"
LINKS = ("last", "best", "previous")


@dataclass
class Progress:
    """How far a run is. `batch` counts the batches of `epoch` (from 0) that are done."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    samples: int = 0
    best_score: float | None = None


def save_checkpoint(
    run: Path, model: CLIP, optimiser: torch.optim.Optimizer, progress: Progress, best: bool = False
) -> Path:
    """Write a checkpoint of `run` and let `last` (and `best`) name it; checkpoints that no link names are removed.

    Raises:
        InputError: no space left on the device, or no permission. The checkpoints before stay as they were.
    """
    folder = run / "checkpoints" / f"step_{progress.step:08d}"
    if folder in _linked(run) and read_state(folder).get("progress") != asdict(progress):
        # the same weights, further in the data: the last batches of the epoch were all broken
        folder = folder.with_name(f"{folder.name}_epoch_{progress.epoch}")
    if folder.is_dir() and folder not in _linked(run):  # a kill came between this folder and its link
        shutil.rmtree(folder)
    if not folder.exists():
        with write_atomically(folder) as temporary:
            temporary.mkdir()
            save_weights(model, temporary)
            state = {
                "progress": asdict(progress),
                "optimiser": optimiser.state_dict(),
                "torch_generator": torch.get_rng_state(),
                "cuda_generators": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            }
            save_torch(state, temporary / STATE_FILE)
    before = _target(run, "last")
    if before not in (None, folder):
        _link(run, "previous", before)
    _link(run, "last", folder)
    if best:
        _link(run, "best", folder)
    _remove_unlinked(run)
    return folder


def withdraw_checkpoint(run: Path, step: int) -> Path | None:
    """Forget the last checkpoint if it is the state after `step`, which proved bad; returns the last that remains."""
    last, previous = _target(run, "last"), _target(run, "previous")
    if last is not None and read_progress(run).step == step:
        for name in ("last", "best"):
            if _target(run, name) == last:
                (run / "checkpoints" / name).unlink()
        if previous is not None and previous != last:
            _link(run, "last", previous)
        _remove_unlinked(run)
    return _target(run, "last")


def restore_checkpoint(run: Path, model: CLIP, optimiser: torch.optim.Optimizer) -> Progress:
    """Continue from the last checkpoint of `run`: weights, optimiser, generators; returns how far it was.

    Raises:
        InputError: there is none, or it does not belong to this model.
    """
    folder = find_checkpoint(run, "last")
    load_weights(model, folder)
    state = read_state(folder)
    try:
        optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["torch_generator"])
        if torch.cuda.is_available() and state["cuda_generators"]:
            torch.cuda.set_rng_state_all(state["cuda_generators"])
        return Progress(**state["progress"])
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{folder / STATE_FILE} is no training state of this model ({error}): start a new run"
        ) from None


def read_progress(run: Path) -> Progress:
    """How far the last checkpoint of `run` is.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    folder = find_checkpoint(run, "last")
    try:
        return Progress(**read_state(folder)["progress"])
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / STATE_FILE} is no training state ({error}): start a new run") from None


def read_state(folder: Path) -> dict[str, Any]:
    """The training state in a checkpoint's folder.

    Raises:
        InputError: it cannot be read.
    """
    state = read_pickle(folder / STATE_FILE)
    return state if isinstance(state, dict) else {}


def find_checkpoint(run: Path, name: str) -> Path:
    """The folder that `last` or `best` names.

    Raises:
        InputError: the run has no such checkpoint.
    """
    folder = run / "checkpoints" / name
    if not (folder / STATE_FILE).is_file():
        raise InputError(f"{run} has no checkpoint {name!r} yet: start it without --resume")
    return folder


def _target(run: Path, name: str) -> Path | None:
    link = run / "checkpoints" / name
    return link.parent / os.readlink(link) if link.is_symlink() else None


def _linked(run: Path) -> set[Path]:
    return {target for name in LINKS if (target := _target(run, name)) is not None}


def _remove_unlinked(run: Path) -> None:
    for folder in set((run / "checkpoints").glob("step_*")) - _linked(run):
        shutil.rmtree(folder)


def _link(run: Path, name: str, folder: Path) -> None:
    link = run / "checkpoints" / name
    temporary = link.with_name(f".{name}.tmp")
    with disk_errors(link):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(folder.name)
        os.replace(temporary, link)
