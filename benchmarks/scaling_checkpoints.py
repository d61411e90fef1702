"""A checkpoint of real processes: its bytes, what its time goes into, and how long it takes to go on from it."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

import diffclip.files
import diffclip.weights
from benchmarks.scaling_sizes import Sizes, made_batch
from diffclip.model import CLIP
from diffclip.training import checkpoint, exchange, sharded
from diffclip.training.accumulate import backward_whole
from diffclip.training.losses import make_criterion
from diffclip.training.optimiser import make_optimiser
from diffclip.weights import load_weights

# where the parts of a checkpoint's time are spent
_PARTS = (
    (checkpoint, "whole_state", "gather"),
    (diffclip.weights, "save_file", "write"),
    (sharded, "save_file", "write"),
    (diffclip.files, "flush", "fsync"),
    (checkpoint, "flush", "fsync"),
    (checkpoint, "list_files", "checksum"),
)


def checkpoints(fabric: Any, sizes: Sizes) -> dict[str, Any]:
    """Two checkpoints of a model after one step, the second one timed; and going on from those of other runs.

    `sizes.folder` holds a folder for each number of processes; `sizes.earlier` are those that have written theirs.
    """
    recipe = sizes.recipe()
    model = CLIP(recipe.config(), seed=0)
    wrapped = fabric.setup_module(model)
    optimiser = make_optimiser(model, recipe)
    fabric.setup_optimizers(optimiser)
    backward_whole(wrapped, make_criterion("clip", True), *made_batch(model, 2), fabric.backward)
    optimiser.step()
    run = Path(sizes.folder) / str(fabric.world_size)
    told: dict[str, Any] = {}
    for number in (1, 2):
        clocks = [_Clock(*part) for part in _PARTS]
        dist.barrier()
        started = time.perf_counter()
        folder = checkpoint.save_checkpoint(fabric, run, model, optimiser, checkpoint.Progress(step=number))
        told = {"seconds": time.perf_counter() - started, "parts": _sum(clocks)}
        for clock in clocks:
            clock.remove()
    told["bytes"] = sum(file.stat().st_size for file in folder.iterdir())
    told["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    told["plain"] = plain_rates(run, told["bytes"]) if fabric.global_rank == 0 else {}
    dist.barrier()
    told["going_on"] = [_go_on(fabric, sizes, world) for world in [*sizes.earlier, fabric.world_size]]
    return told


def plain_rates(folder: Path, size: int) -> dict[str, float]:
    """Bytes a second of writing a file of `size` bytes and making the disk hold it, and of its checksum."""
    block = os.urandom(1 << 22)
    file = folder / "plain"
    started = time.perf_counter()
    with file.open("wb") as handle:
        for _ in range(max(1, size // len(block))):
            handle.write(block)
        handle.flush()
        os.fsync(handle.fileno())
    written = time.perf_counter() - started
    started, value = time.perf_counter(), 0
    with file.open("rb") as handle:
        while read := handle.read(1 << 22):
            value = zlib.crc32(read, value)
    summed = time.perf_counter() - started
    size = file.stat().st_size
    file.unlink()
    return {"write": size / written, "checksum": size / summed}


def _go_on(fabric: Any, sizes: Sizes, world: int) -> dict[str, Any]:
    """Seconds until a model stands where the run of `world` processes was."""
    run = Path(sizes.folder) / str(world)
    dist.barrier()
    started = time.perf_counter()
    found = checkpoint.choose_checkpoint(run, print) if fabric.global_rank == 0 else None
    checked = time.perf_counter() - started
    folder = exchange.share(fabric, found)[0]
    if folder is None:
        raise RuntimeError(f"{run} has no checkpoint")
    recipe = sizes.recipe()
    model = CLIP(recipe.config(), seed=1)
    load_weights(model, folder)
    fabric.setup_module(model)
    optimiser = make_optimiser(model, recipe)
    fabric.setup_optimizers(optimiser)
    progress = checkpoint.restore_checkpoint(fabric, folder, model, optimiser, seed=0)
    took = time.perf_counter() - started
    return {
        "from": world,
        "to": fabric.world_size,
        "checked": checked,
        "seconds": took,
        "step": progress.step,
    }


class _Clock:
    """Counts the seconds that a function of a module takes, from now until it is removed."""

    def __init__(self, module: Any, name: str, part: str) -> None:
        self.module, self.name, self.part, self.seconds = module, name, part, 0.0
        self.function: Callable[..., Any] = getattr(module, name)
        setattr(module, name, self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return self.function(*arguments, **options)
        finally:
            self.seconds += time.perf_counter() - started

    def remove(self) -> None:
        setattr(self.module, self.name, self.function)


def _sum(clocks: list[_Clock]) -> dict[str, float]:
    parts: dict[str, float] = {}
    for clock in clocks:
        parts[clock.part] = parts.get(clock.part, 0.0) + clock.seconds
    return parts
