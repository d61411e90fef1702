"""Checkpoints: folders that appear whole, with `last`, `previous` and `best` as links to them.

`checkpoints/step_00000120/` is a saved model (`config.json`, `model.safetensors`) with the optimizer's state in one
file a process that holds a share of it (`optimizer-00000-of-00001.safetensors`), the random generators of each process
(`generators.safetensors`), the place in the run (`training.json`) and `files.json` (size and checksum of the others).
A folder is written under a temporary name and renamed, and only then is the link moved, so that `last` names a whole
checkpoint. Checksums find files that were damaged later, on a disk or in a copy.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from diffclip.errors import InputError
from diffclip.files import disk_errors, flush, write_text
from diffclip.training.distributed import all_do, first_does, share
from diffclip.training.optimizer import load_optimizer, save_optimizer, whole_state
from diffclip.weights import save_tensors, save_weights

if TYPE_CHECKING:
    from diffclip.model import CLIP

STATE_FILE, FILES_FILE, GENERATORS_FILE = "training.json", "files.json", "generators.safetensors"
LINKS = ("last", "best", "previous")


@dataclass
class Progress:
    """The place in a run. `batch` counts the batches of `epoch` (from 0) that are done; `order` identifies the order of
    the samples, and `processes` is the number that shared it; `validation` identifies the captions that `best_score` is
    of."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    samples: int = 0
    best_score: float | None = None
    order: str | None = None
    processes: int = 1
    validation: str | None = None


def save_checkpoint(
    fabric: Any,
    run: Path,
    model: CLIP,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    best: bool = False,
) -> Path:
    """Write a checkpoint of `run` and let `last` (and `best`) name it; all processes call it, and get the same folder.

    Checkpoints that no link names are removed.

    Raises:
        InputError: no space left on the device, or no permission. The checkpoints before stay as they were.
    """
    folder, temporary = first_does(fabric, lambda: _make_folder(run, progress))
    if temporary is not None:
        try:
            _fill(fabric, temporary, model, optimizer, progress)
            first_does(fabric, lambda: _put(temporary, folder))
        finally:
            if fabric.global_rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
    first_does(fabric, lambda: _link_new(run, folder, best))
    return folder


def _make_folder(run: Path, progress: Progress) -> tuple[Path, Path | None]:
    """Return the checkpoint's folder, and the temporary one to fill first: None where the folder is there already."""
    folder = run / "checkpoints" / f"step_{progress.step:08d}"
    with disk_errors(folder):
        linked = _linked(run)
        if folder in linked and read_state(folder) != progress:
            # the same weights, further in the data: the last batches were all broken
            folder = folder.with_name(f"{folder.name}_epoch_{progress.epoch}_batch_{progress.batch}")
        if folder in linked:
            return folder, None
        shutil.rmtree(folder, ignore_errors=True)  # a kill came between this folder and its link
        for left in folder.parent.glob(".*.tmp"):  # of a run that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        temporary = folder.with_name(f".{uuid.uuid4().hex[:8]}.tmp")
        temporary.mkdir(parents=True)
    return folder, temporary


def _fill(
    fabric: Any, temporary: Path, model: CLIP, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    first = fabric.global_rank == 0
    own = {"cpu": torch.get_rng_state()}
    if fabric.device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state()
    by_rank = share(fabric, own)
    weights = whole_state(model, keep=first)

    def write() -> None:
        with disk_errors(temporary.parent):
            save_optimizer(temporary, model, optimizer, fabric.global_rank, fabric.world_size)
            if first:
                save_weights(model, temporary, weights)
                generators = {
                    f"{rank}.{name}": state for rank, own in enumerate(by_rank) for name, state in own.items()
                }
                save_tensors(generators, temporary / GENERATORS_FILE)
                write_text(temporary / STATE_FILE, json.dumps(asdict(progress), indent=1) + "\n")

    all_do(fabric, write)


def _put(temporary: Path, folder: Path) -> None:
    with disk_errors(folder):
        listed = {file.name: [file.stat().st_size, _checksum(file)] for file in sorted(temporary.iterdir())}
        write_text(temporary / FILES_FILE, json.dumps(listed, indent=1) + "\n")
        flush(temporary)
        os.replace(temporary, folder)


def _link_new(run: Path, folder: Path, best: bool) -> None:
    before = target_of(run, "last")
    if before not in (None, folder):
        _link(run, "previous", before)
    _link(run, "last", folder)
    if best:
        _link(run, "best", folder)
    for unlinked in set((run / "checkpoints").glob("step_*")) - _linked(run):
        shutil.rmtree(unlinked, ignore_errors=True)


def restore_checkpoint(
    fabric: Any, folder: Path, model: CLIP, optimizer: torch.optim.Optimizer, seed: int
) -> Progress:
    """Set optimizer and generators as they were at `folder`; return the place in the run. Weights are loaded before the
    model is shared out (`diffclip.load_weights`).

    With another number of processes than then, each draws its random numbers anew from the run's `seed` and the step.

    Raises:
        InputError: it does not belong to this model.
    """
    progress = read_state(folder)
    rank, world = fabric.global_rank, fabric.world_size
    try:
        states = load_file(folder / GENERATORS_FILE)
        if f"{world - 1}.cpu" in states and f"{world}.cpu" not in states:
            torch.set_rng_state(states[f"{rank}.cpu"])
            if fabric.device.type == "cuda" and f"{rank}.cuda" in states:
                torch.cuda.set_rng_state(states[f"{rank}.cuda"], fabric.device)
        else:
            torch.manual_seed(hash((seed, progress.step, rank)) % 2**63)
    except (SafetensorError, OSError, RuntimeError, TypeError) as error:
        raise InputError(f"{folder / GENERATORS_FILE} cannot be used ({error}): start a new run") from None
    if not (folder.parent / "best").exists():  # it was damaged
        progress.best_score = None
    load_optimizer(folder, model, optimizer)
    return progress


def read_state(folder: Path) -> Progress:
    """The place of the checkpoint in `folder`.

    Raises:
        InputError: its state cannot be read.
    """
    try:
        return Progress(**json.loads((folder / STATE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise InputError(f"{folder / STATE_FILE} is no training state: start a new run") from None


def choose_checkpoint(run: Path) -> Path | None:
    """Choose the newest checkpoint of `run` that is whole, which `last` then names; None where the run has none yet.

    Damaged ones are named on stderr, and the next checkpoint removes them.

    Raises:
        InputError: there are checkpoints, and none is whole.
    """
    folders = sorted((run / "checkpoints").glob("step_*"), reverse=True)
    damaged: dict[Path, str] = {}
    while folders and (fault := damage(folders[0])) is not None:
        damaged[folders[0]] = f"{folders[0]} is damaged ({fault})"
        del folders[0]
    faults = "; ".join(damaged.values())
    if not folders:
        if damaged:
            raise InputError(f"{faults}: start a new run in another folder")
        return None
    if damaged:
        print(f"{faults}: going on from {folders[0].name}", file=sys.stderr)
    if not damaged:
        _link_best(run, folders[0])
    for name in LINKS:
        if target_of(run, name) in damaged:
            (run / "checkpoints" / name).unlink()
    _link(run, "last", folders[0])
    return folders[0]


def _link_best(run: Path, newest: Path) -> None:
    """Let `best` name the newest checkpoint where a kill came between its folder and that link."""
    best, state = target_of(run, "best"), read_state(newest)
    try:
        before = Progress() if best is None else read_state(best)
    except InputError:  # `best` is damaged
        return
    others = before.validation not in (None, state.validation)
    if state.best_score is not None and (
        before.best_score is None or others or state.best_score > before.best_score
    ):
        _link(run, "best", newest)


def damage(folder: Path) -> str | None:
    """The fault of a checkpoint's files; None if they are as they were written."""
    try:
        listed = json.loads((folder / FILES_FILE).read_text(encoding="utf-8"))
        for name, (size, checksum) in listed.items():
            file = folder / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} is cut off: {file.stat().st_size} of {size} bytes"
            if _checksum(file) != checksum:
                return f"{name} is not what was written"
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{FILES_FILE} cannot be read: {' '.join(str(error).split())}"


def target_of(run: Path, name: str) -> Path | None:
    """The checkpoint that the link `name` of `run` points to."""
    place = run / "checkpoints" / name
    return place.parent / os.readlink(place) if place.is_symlink() else None


def _linked(run: Path) -> set[Path]:
    targets = (target_of(run, name) for name in LINKS)
    return {target for target in targets if target is not None and target.is_dir()}


def _link(run: Path, name: str, folder: Path) -> None:
    place = run / "checkpoints" / name
    temporary = place.with_name(f".{name}.tmp")
    with disk_errors(place):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(folder.name)
        os.replace(temporary, place)


def _checksum(file: Path) -> int:
    value = 0
    with file.open("rb") as handle:
        while block := handle.read(1 << 22):
            value = zlib.crc32(block, value)
    return value
