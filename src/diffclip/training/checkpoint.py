"""Checkpoints: folders that are written whole or not at all, and the links `last`, `previous` and `best` to them.

`checkpoints/step_00000120/` is a saved model (`config.json`, `model.safetensors`) with the optimizer's state, the
random generators of each process, the position in the run (`training.json`) and `files.json` (size and checksum of the
others). A folder is written under a temporary name and then renamed. Only then is `last` moved, so that it always names
a whole checkpoint. Checksums find files that were damaged later, on a disk or in a copy.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from diffclip.errors import InputError, explain_errors
from diffclip.files import explain_disk_errors, flush, read_link, write_link, write_text
from diffclip.training.distributed import gather, shared_errors
from diffclip.training.optimizer import load_optimizer, optimizer_tensors
from diffclip.weights import save_tensors, save_weights

if TYPE_CHECKING:
    from diffclip.model import CLIP

STATE_FILE, FILES_FILE = "training.json", "files.json"
GENERATORS_FILE, OPTIMIZER_FILE = "generators.safetensors", "optimizer.safetensors"
LINKS = ("last", "best", "previous")


@dataclass
class RunProgress:
    """The position in a run. `batch` counts the finished batches of `epoch` (from 0). `order` identifies the order of
    the samples, and `processes` is the number of processes that shared the samples. `validation` identifies the
    captions that `best_score` was measured on."""

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
    progress: RunProgress,
    best: bool = False,
) -> Path:
    """Write a checkpoint of `run` and point `last` (and `best`) to it; all processes call this and get the same folder.

    Checkpoints that no link points to are removed. If the disk refuses to write, `InputError` is raised and the
    earlier checkpoints stay as they were.
    """
    is_first = fabric.global_rank == 0
    with shared_errors(fabric):
        place = _folder_for(run, progress) if is_first else (run, False)
    folder, is_saved = gather(fabric, place)[0]
    if is_saved:
        return folder
    own = {f"{fabric.global_rank}.cpu": torch.get_rng_state()}
    if fabric.device.type == "cuda":
        own[f"{fabric.global_rank}.cuda"] = torch.cuda.get_rng_state()
    generators = {name: state for states in gather(fabric, own) for name, state in states.items()}
    # the tensors of a sharded model are gathered in the first process
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights: Any = get_model_state_dict(model, options=options)
    moments = optimizer_tensors(model, optimizer, is_first)
    with shared_errors(fabric):
        if is_first:
            with _new_folder(run) as temporary:
                save_weights(model, temporary, weights)
                save_tensors(moments, temporary / OPTIMIZER_FILE)
                save_tensors(generators, temporary / GENERATORS_FILE)
                write_text(temporary / STATE_FILE, json.dumps(asdict(progress), indent=1) + "\n")
            _publish(run, temporary, folder, best)
    return folder


def _folder_for(run: Path, progress: RunProgress) -> tuple[Path, bool]:
    """Return the folder for a checkpoint, and whether the checkpoint exists already."""
    folder = run / "checkpoints" / f"step_{progress.step:08d}"
    if folder.exists() and read_state(folder) != progress:
        # the same weights, further in the data: for example, the last batches were all broken
        folder = folder.with_name(f"{folder.name}_epoch_{progress.epoch}_batch_{progress.batch}")
    return folder, folder.exists()


@contextmanager
def _new_folder(run: Path) -> Iterator[Path]:
    """Make the folder that a checkpoint is written into; it is removed if the block fails."""
    folder = run / "checkpoints" / ".new.tmp"
    try:
        with explain_disk_errors(folder.parent):
            shutil.rmtree(folder, ignore_errors=True)  # left by a run that was killed while writing
            folder.mkdir(parents=True)
            yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _publish(run: Path, temporary: Path, folder: Path, best: bool) -> None:
    """Rename `temporary` to `folder` and update the links; a whole checkpoint stays, whatever fails."""
    links = {name: run / "checkpoints" / name for name in LINKS}
    with explain_disk_errors(folder):
        checksums = {file.name: _size_and_checksum(file) for file in sorted(temporary.iterdir())}
        write_text(temporary / FILES_FILE, json.dumps(checksums, indent=1) + "\n")
        flush(temporary)
        try:
            if best:  # before the rename: a run that is killed in between validates again
                write_link(links["best"], folder)
        finally:
            os.replace(temporary, folder)
    if (previous := read_link(links["last"])) is not None:
        write_link(links["previous"], previous)
    write_link(links["last"], folder)
    for unlinked in set((run / "checkpoints").glob("step_*")) - {read_link(link) for link in links.values()}:
        shutil.rmtree(unlinked, ignore_errors=True)


def restore_checkpoint(
    fabric: Any, folder: Path, model: CLIP, optimizer: torch.optim.Optimizer, seed: int
) -> None:
    """Restore optimizer and random generators from `folder`, a whole checkpoint.

    Weights are loaded earlier, before the model is sharded (`diffclip.load_weights`). If the number of processes has
    changed, each process seeds its generator from the run's `seed`, the step and its rank.
    """
    rank, world = fabric.global_rank, fabric.world_size
    states = load_file(folder / GENERATORS_FILE)
    if f"{world - 1}.cpu" in states and f"{world}.cpu" not in states:
        torch.set_rng_state(states[f"{rank}.cpu"])
        if fabric.device.type == "cuda" and f"{rank}.cuda" in states:
            torch.cuda.set_rng_state(states[f"{rank}.cuda"], fabric.device)
    else:
        torch.manual_seed(hash((seed, read_state(folder).step, rank)) % 2**63)
    load_optimizer(load_file(folder / OPTIMIZER_FILE), model, optimizer)


def read_state(folder: Path) -> RunProgress:
    """Read the position in the run from the checkpoint in `folder`; `InputError` is raised if it is damaged."""
    file = folder / STATE_FILE
    with explain_errors(f"cannot read {file}", "go on with --resume, from the newest whole checkpoint"):
        return RunProgress(**json.loads(file.read_text(encoding="utf-8")))


def choose_checkpoint(run: Path) -> Path | None:
    """Choose the newest whole checkpoint of `run` and point `last` to it; None if the run has no checkpoint yet.

    Newer checkpoints, all damaged, are named on stderr and removed. If none is whole, `InputError` is raised.
    """
    damaged: dict[Path, str] = {}
    for folder in sorted((run / "checkpoints").glob("step_*"), reverse=True):
        if fault := find_damage(folder):
            damaged[folder] = f"{folder} is damaged ({fault})"
            continue
        for damaged_folder, message in damaged.items():
            print(f"{message}: going on from {folder.name}", file=sys.stderr)
            shutil.rmtree(damaged_folder, ignore_errors=True)
        write_link(run / "checkpoints" / "last", folder)
        return folder
    if damaged:
        raise InputError(f"{'; '.join(damaged.values())}: start a new run in another folder")
    return None


def find_damage(folder: Path) -> str | None:
    """Describe the first damaged file of a checkpoint; None if all files are as they were written."""
    try:
        for name, written in json.loads((folder / FILES_FILE).read_text(encoding="utf-8")).items():
            if _size_and_checksum(folder / name) != written:
                return f"{name} is not what was written"
    except (OSError, ValueError) as error:
        return " ".join(str(error).split())
    return None


def _size_and_checksum(file: Path) -> list[int]:
    checksum = 0
    with file.open("rb") as handle:
        while block := handle.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return [file.stat().st_size, checksum]


def try_folder(run: Path) -> None:
    """Try all that checkpoints need of the folder of `run`, before the first step; raise `InputError` if it fails."""
    with _new_folder(run) as temporary:
        (temporary / "file").write_text("trial")
        flush(temporary)
    folder, link = temporary.with_name("trial.tmp"), temporary.with_name("trial_link")
    with explain_disk_errors(folder):
        try:
            shutil.rmtree(folder, ignore_errors=True)  # left by a run that was killed
            os.replace(temporary, folder)
            write_link(link, folder)
            if read_link(link) is None:
                raise InputError(f"{link.parent} does not keep what is written: choose another place")
        finally:
            link.unlink(missing_ok=True)
            for left in (temporary, folder):
                shutil.rmtree(left, ignore_errors=True)
