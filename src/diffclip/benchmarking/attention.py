"""Every operator on one shape: times in turns, and the memory on top of the inputs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from diffclip.benchmarking.operators import Inputs, Operator, Shape, make_inputs, operators, why_not
from diffclip.benchmarking.timing import Sampler, make_sampler, reason, summary, take_turns

KINDS = ("forward", "both")
_MOST_SETS = 8


def measure(
    shape: Shape,
    device: torch.device,
    dtype: torch.dtype,
    rounds: int,
    seconds: float | None = None,
    names: tuple[str, ...] | None = None,
    tell: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, Any]]:
    """Time each operator for `shape`.

    Args:
        shape, device, dtype: of the inputs.
        rounds, seconds: as `take_turns` has them; `seconds` counts the preparation too.
        names: operators, None for all.
        tell: is called after every operator that was prepared and every round.

    Returns:
        name → `forward` (without gradients) and `both` (forward and backward), each with `median_ms`, `low_ms`,
        `high_ms`, `samples`, and on a GPU `peak_bytes` on top of the inputs; `backward` is the difference of the two.
        An operator that cannot run has only `why`.
    """
    started = time.perf_counter()
    sets = [make_inputs(shape, device, dtype, seed) for seed in range(_sets(shape, device, dtype))]
    rows: dict[str, dict[str, Any]] = {}
    samplers: dict[str, Sampler] = {}
    for name, operator in operators(device).items():
        if names is not None and name not in names:
            continue
        rows[name] = {}
        why = why_not(name, sets[0])
        if why is None:
            try:
                for kind in KINDS:
                    samplers[f"{kind} {name}"], rows[name][kind] = _prepare(operator, kind, sets, device)
            except Exception as error:  # an operator that fails must not take the others along
                why = reason(error)
        if why is not None:
            _drop(name, why, rows, samplers)
        tell()
    left = None if seconds is None else max(0.0, seconds - (time.perf_counter() - started))
    samples, failures = take_turns(samplers, rounds, left, tell)
    for key, why in failures.items():
        _drop(key.split(" ", 1)[1], why, rows, samplers)
    for name, row in rows.items():
        for kind in KINDS:
            if kind in row:
                row[kind] |= summary(samples[f"{kind} {name}"])
        if row.keys() >= set(KINDS):
            row["backward"] = {"median_ms": row["both"]["median_ms"] - row["forward"]["median_ms"]}
    return rows


def _prepare(
    operator: Operator, kind: str, sets: list[Inputs], device: torch.device
) -> tuple[Sampler, dict[str, Any]]:
    """Make a sampler of one operator, forward alone or with backward, and measure its memory."""
    calls = [functools.partial(_call, operator, kind, inputs) for inputs in sets]
    facts: dict[str, Any] = {}
    if device.type == "cuda":
        calls[0]()
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        calls[0]()
        facts["peak_bytes"] = torch.cuda.max_memory_allocated(device) - before
    return make_sampler(calls, device), facts


def _call(operator: Operator, kind: str, inputs: Inputs) -> None:
    if kind == "both":
        operator.forward_and_backward(inputs)
    else:
        with torch.no_grad():
            operator.forward(inputs)


def _sets(shape: Shape, device: torch.device, dtype: torch.dtype) -> int:
    """Input sets to go through: on a GPU several times its cache, so that memory is measured and not the cache."""
    if device.type != "cuda":
        return 1  # a layer finds its inputs in the cache too
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    inputs = 3 * shape.batch * shape.tokens * shape.width * dtype.itemsize
    return max(2, min(_MOST_SETS, -(-4 * cache // inputs)))


def _drop(name: str, why: str, rows: dict[str, dict[str, Any]], samplers: dict[str, Sampler]) -> None:
    """Keep only why the operator did not run, and give its memory back."""
    rows[name] = {"why": why}
    for kind in KINDS:
        samplers.pop(f"{kind} {name}", None)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
