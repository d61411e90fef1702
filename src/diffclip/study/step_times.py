"""Measure a training step of each arm: all arms take turns in one process, which has the machine to itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diffclip.benchmarking.timing import take_turns
from diffclip.errors import DiffCLIPError
from diffclip.files import write_text
from diffclip.study.results import TIMING_FILE
from diffclip.study.spec import Study
from diffclip.training.about import cpu_name
from diffclip.training.plan import make_step
from diffclip.training.recipe import Recipe

_STEPS = 3  # per turn, after one step to warm up
_ROUNDS = 15  # at most


def time_arms(study: Study, output: Path, device: str, threads: int, seconds: float) -> dict[str, Any]:
    """Measure a training step of every arm and write timing.json into the folder `output`.

    A step is forward, loss, backward and AdamW on a random batch on the device, in the recipe's precision and
    micro-batches. In each round every arm takes a turn of three steps after one step to warm up. The ratio to the
    first arm is taken within a round, so that a slow moment of the machine affects both. Arms with the same computation
    are measured too: their ratio shows the noise.

    After `seconds` no new round begins, except for the first three. There are at most fifteen rounds. An arm that
    cannot be timed, for example because memory is short, raises `DiffCLIPError`.
    """
    processor, old_threads = torch.device(device), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        samplers = {arm: _make_turn(recipe, processor) for arm, recipe in study.recipes.items()}
        milliseconds, failures = take_turns(samplers, _ROUNDS, seconds)
        samplers.clear()  # a GPU is for the runs now
        if processor.type == "cuda":
            torch.cuda.empty_cache()
    finally:
        torch.set_num_threads(old_threads)
    for arm, reason in failures.items():
        raise DiffCLIPError(
            f"a step of {arm} cannot be timed ({reason}): stop what else runs, or leave arms out"
        )
    baseline = next(iter(study.arms))
    timing = {
        "device": torch.cuda.get_device_name(processor) if processor.type == "cuda" else cpu_name(),
        "threads": threads,
        "torch": str(torch.__version__),
        "rounds": len(milliseconds[baseline]),
        "batch_size": study.recipes[baseline].batch_size,
        "arms": {arm: time_of(milliseconds[arm], milliseconds[baseline]) for arm in study.arms},
    }
    write_text(output / TIMING_FILE, json.dumps(timing, indent=1) + "\n")
    return timing


def time_of(times: Sequence[float], baseline: Sequence[float]) -> dict[str, float]:
    """Summarize the milliseconds of an arm's steps over rounds: `milliseconds` (median) and `ratio` to the baseline
    (median) with its distribution-free 95 % interval `low`, `high` (with fewer than six rounds the whole range, which
    covers less)."""
    from scipy.stats import binom

    ratios = sorted(arm_time / baseline_time for arm_time, baseline_time in zip(times, baseline, strict=True))
    outside = max(0, int(binom.ppf(0.025, len(ratios), 0.5)) - 1)  # values on either side of the interval
    summary = {"milliseconds": round(float(np.median(times)), 3), "ratio": round(float(np.median(ratios)), 4)}
    return summary | {"low": round(ratios[outside], 4), "high": round(ratios[-1 - outside], 4)}


def _make_turn(recipe: Recipe, device: torch.device) -> Callable[[], float]:
    """Make an arm's model and optimizer; return a function that takes a turn and returns the milliseconds of a step."""
    step = make_step(recipe, device, recipe.batch_size)

    def turn() -> float:
        step()
        return 1000 * sum(step() for _ in range(_STEPS)) / _STEPS

    return turn
