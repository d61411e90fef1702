"""What a run of a study cost: time, memory, and on what."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

import diffclip
from diffclip.files import write_text
from diffclip.model import CLIP
from diffclip.training.recipe import Recipe
from diffclip.training.run_folder import METRICS_FILE, read_starts

MEASURED_FILE = "measured.json"
"""In the folder of a run that a study has trained: the part of its cost that its telemetry does not tell."""

Outcome = TypeVar("Outcome")

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): sets the peak resident size to the size now


def watch_training(
    run: Path, device: torch.device, side_by_side: int, train: Callable[[], Outcome]
) -> Outcome:
    """Return what `train` does, which ends with `run` trained, and note in the folder how much memory it took, and what
    else the telemetry does not tell. Of a run that was trained before, nobody knows its memory.

    Raises:
        InputError: the folder cannot be written.
    """
    starts = len(read_starts(run))
    watched = _reset_peak(device)
    outcome = train()
    if (run / MEASURED_FILE).is_file():
        return outcome
    here = len(read_starts(run)) > starts
    facts = {
        "peak_memory": _peak(device) if here and watched else None,
        "memory_of": "GPU" if device.type == "cuda" else "process",
        "side_by_side": side_by_side,
        "threads": torch.get_num_threads(),
    }
    write_text(run / MEASURED_FILE, json.dumps(facts) + "\n")
    return outcome


def cost_of(
    run: Path, recipe: Recipe, device: torch.device, suite: str | None, suite_seconds: float | None
) -> dict[str, Any]:
    """What the trained `run` cost, as it stands in `cost.json`.

    `seconds` are those of training on the wall, validations included, from the start to the last step, over all starts;
    steps that a kill lost and that were made again count once. `step_seconds` is the median step, waiting for data
    included; None for a run that diverged in its first step.
    """
    rows = [json.loads(line) for line in (run / METRICS_FILE).read_text(encoding="utf-8").splitlines()]
    starts = read_starts(run)
    measured = json.loads((run / MEASURED_FILE).read_text(encoding="utf-8"))
    with torch.device("meta"):
        parameters = sum(weights.numel() for weights in CLIP(recipe.config(), seed=0).parameters())
    samples = np.diff([0, *(row["samples"] for row in rows)])
    rates = [row["samples_per_second"] for row in rows]
    return {
        "seconds": round(_seconds([row["time"] for row in rows], [start["time"] for start in starts]), 2),
        "step_seconds": float(np.median(samples / rates)) if rows else None,
        "peak_memory": measured["peak_memory"],
        "memory_of": measured["memory_of"],
        "parameters": parameters,
        "device": _device_name(device, starts),
        "side_by_side": measured["side_by_side"],
        "threads": measured["threads"],
        "torch": str(torch.__version__),
        "diffclip": diffclip.__version__,
        "suite": suite,
        "suite_seconds": None if suite_seconds is None else round(suite_seconds, 2),
    }


def _seconds(steps: list[float], starts: list[float]) -> float:
    """From each step back to the step before it, or to the start that came between; all are unix seconds."""
    moments = np.sort([*steps, *starts])
    before = np.searchsorted(moments, steps) - 1
    return float(sum(step - moments[at] for step, at in zip(steps, before, strict=True) if at >= 0))


def _device_name(device: torch.device, starts: list[dict[str, Any]]) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    told = [start.get("machine", {}).get("cpu") for start in starts]
    return str(next(filter(None, reversed(told)), "CPU"))


def _reset_peak(device: torch.device) -> bool:
    """Forget the memory that was used before; whether that can be done here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    if sys.platform != "linux":
        return False
    with suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
        return _peak(device) is not None
    return False


def _peak(device: torch.device) -> int | None:
    """Bytes: of tensors on a GPU, on a CPU the process's resident size."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, ValueError, IndexError):
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None
