"""Measure milliseconds in samples that take turns, so that noise of the machine affects all operators alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from diffclip.errors import StoppedError

Sampler = Callable[[], float]
_LEAST_ROUNDS = 3
_SAMPLE_MS = 4  # of work in a sample on a GPU


def make_sampler(call: Callable[[], object], device: torch.device) -> Sampler:
    """Warm up `call`; return a sampler of its milliseconds. On a GPU, its cache is emptied before each call."""
    call()

    def sample() -> float:
        started = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - started)

    def sample_gpu() -> float:
        from triton.testing import do_bench

        with torch.cuda.device(device):
            return float(do_bench(call, warmup=1, rep=_SAMPLE_MS, return_mode="median"))

    return sample_gpu if device.type == "cuda" else sample


def take_turns(
    samplers: Mapping[str, Sampler], rounds: int, seconds: float | None = None
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return samples by name, one of each per round after a warm-up round, and the errors of failed samplers. Stop
    after `rounds`, or after `seconds` if at least three rounds are done."""
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    failures: dict[str, str] = {}
    started = time.perf_counter()
    for turn in range(rounds + 1):
        is_late = seconds is not None and time.perf_counter() - started > seconds
        if is_late and turn > _LEAST_ROUNDS:
            break
        for name in list(samples):
            try:
                milliseconds = samplers[name]()
            except StoppedError:
                raise
            except Exception as error:  # the other samplers go on
                failures[name] = describe_error(error)
                del samples[name]
                continue
            if turn:
                samples[name].append(milliseconds)
    return samples, failures


def summarize(samples: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles in milliseconds, and the number of samples."""
    low, median, high = np.quantile(samples, [0.25, 0.5, 0.75]).tolist()
    return {"median_ms": median, "low_ms": low, "high_ms": high, "samples": len(samples)}


def describe_error(error: BaseException) -> str:
    """Describe an error in a few words."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line.strip()}"[:200]
