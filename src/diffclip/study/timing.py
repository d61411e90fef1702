"""The time of a training step of each arm, measured alone: all arms take turns in one process that has the machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffclip.errors import DiffCLIPError, InputError
from diffclip.files import write_text
from diffclip.model import CLIP
from diffclip.study.recipe import Study
from diffclip.training.distributed import native_precision
from diffclip.training.losses import make_criterion
from diffclip.training.recipe import Recipe
from diffclip.training.run_folder import cpu_name

TIMING_FILE = "timing.json"

_STEPS = 3  # of a turn, after one that warms up
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 15
_LR = 1e-6  # so small that a made-up batch cannot make the weights infinite


def read_timing(folder: Path) -> dict[str, Any] | None:
    """The content of timing.json, see `time_arms`; None where there is none.

    Raises:
        InputError: the file is no JSON, or has no arms.
    """
    file = folder / TIMING_FILE
    if not file.is_file():
        return None
    try:
        timing = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(timing["arms"], dict):
            return dict(timing)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise InputError(f"{file} cannot be read: remove it to measure anew")


def time_arms(study: Study, output: Path, device: str, threads: int, seconds: float) -> dict[str, Any]:
    """Measure a training step of every arm and write timing.json into the folder `output`.

    A step is forward, loss, backward and AdamW on a made-up batch on the device, in the recipe's precision. In each
    round every arm takes a turn of three steps after one that warms up, in an order that changes. The ratio to the
    baseline is taken within a round, so that a slow moment of the machine meets both. Arms that compute the same are
    measured all the same: their ratio shows the noise.

    Args:
        threads: the threads of torch meanwhile, on a CPU.
        seconds: no round is begun after so many, but for the first three; fifteen are enough.

    Returns:
        `device`, `threads`, `torch`, `rounds`, `batch_size`, and `arms`: for each `milliseconds` (median over rounds),
        `ratio` to the baseline (median) with its distribution-free 95 % interval `low`, `high` (with fewer than six
        rounds the least and the greatest), and `peak_memory` in bytes (None on a CPU).

    Raises:
        InputError: the file cannot be written.
        DiffCLIPError: the arms do not fit into the GPU's memory.
    """
    place, before = torch.device(device), torch.get_num_threads()
    end, took = time.monotonic() + seconds, 0.0
    rounds: list[dict[str, tuple[float, int | None]]] = []
    torch.set_num_threads(threads)
    try:
        steps = {arm: _Step(recipe, place) for arm, recipe in study.recipes.items()}
        while len(rounds) < _LEAST_ROUNDS or (len(rounds) < _MOST_ROUNDS and time.monotonic() + took < end):
            started = time.monotonic()
            order = np.roll(list(steps), -(len(rounds) // 2))[:: -1 if len(rounds) % 2 else 1]
            rounds.append({str(arm): steps[str(arm)].turn() for arm in order})
            took = time.monotonic() - started
    except torch.OutOfMemoryError:
        raise DiffCLIPError(
            "the GPU's memory does not hold all arms to time their steps: stop what else uses it, or leave arms out"
        ) from None
    finally:
        torch.set_num_threads(before)
    timing = {
        "device": torch.cuda.get_device_name(place) if place.type == "cuda" else cpu_name() or "CPU",
        "threads": threads,
        "torch": str(torch.__version__),
        "rounds": len(rounds),
        "batch_size": study.recipes[study.primary.against].batch_size,
        "arms": {arm: _time_of(arm, study.primary.against, rounds) for arm in study.arms},
    }
    write_text(output / TIMING_FILE, json.dumps(timing, indent=1) + "\n")
    return timing


class _Step:
    """An arm's model and optimizer on the device, and a step with them."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        config = recipe.config()
        self._device = device
        self._half = native_precision(recipe.precision, device.type) == "bf16"
        self._model = CLIP(config, recipe.init, recipe.attention_backend, recipe.seed).to(device).train()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=_LR, fused=True)
        self._criterion = make_criterion(recipe.loss, recipe.gather_with_grad)
        generator, count, size = torch.Generator().manual_seed(0), recipe.batch_size, config.vision.image_size
        length, words = config.text.context_length, config.text.vocab_size
        images = torch.randn(count, 3, size, size, generator=generator)
        tokens = torch.randint(1, words - 1, (count, length), generator=generator)
        tokens[:, length // 2 :] = 0  # texts end half-way
        tokens[:, length // 2] = words - 1
        self._batch: tuple[Tensor, Tensor] = images.to(device), tokens.to(device)

    def turn(self) -> tuple[float, int | None]:
        """Milliseconds of a step, and on a GPU the most bytes that a step has there beside what stays."""
        self._step()
        self._wait()
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device) if on_gpu else 0
        started = time.perf_counter()
        for _ in range(_STEPS):
            self._step()
        self._wait()
        took = 1000 * (time.perf_counter() - started) / _STEPS
        if not on_gpu:
            return took, None
        state = [value for entry in self._optimizer.state.values() for value in entry.values()]
        stays = sum(value.nbytes for value in (*self._batch, *self._model.parameters(), *state))
        return took, torch.cuda.max_memory_allocated(self._device) - before + stays

    def _step(self) -> None:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            loss = self._criterion(**self._model(*self._batch))
        torch.autograd.backward(loss)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _time_of(
    arm: str, baseline: str, rounds: list[dict[str, tuple[float, int | None]]]
) -> dict[str, float | int | None]:
    from scipy.stats import binom

    times = [each[arm][0] for each in rounds]
    ratios = sorted(each[arm][0] / each[baseline][0] for each in rounds)
    outside = max(0, int(binom.ppf(0.025, len(ratios), 0.5)) - 1)  # values on either side of the interval
    return {
        "milliseconds": round(float(np.median(times)), 3),
        "ratio": round(float(np.median(ratios)), 4),
        "low": round(ratios[outside], 4),
        "high": round(ratios[-1 - outside], 4),
        "peak_memory": max((each[arm][1] or 0 for each in rounds), default=0) or None,
    }
