"""Measure time and memory of every operator on a shape, and advise which backend to use."""

from __future__ import annotations

import functools
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from diffclip.attention.dispatch import BACKENDS, choose_backend
from diffclip.benchmarking.operators import (
    AUTO,
    OPERATORS,
    SDPA,
    TIMM,
    TRITON,
    Inputs,
    Operator,
    Shape,
    make_inputs,
    why_not,
)
from diffclip.benchmarking.timing import Sampler, describe_error, make_sampler, summarize, take_turns
from diffclip.data.workers import Progress

KINDS = ("forward", "both")
# ViT-B/16's towers; on a GPU the batch fills the chip
SHAPES = {
    "cpu": {"vision": Shape(8, 12, 197), "text": Shape(32, 8, 77, causal=True)},
    "cuda": {"vision": Shape(256, 12, 197), "text": Shape(256, 8, 77, causal=True)},
}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
_MOST_ROUNDS = 500
_NOISE_FACTOR = 1.05  # "auto" is advised unless another backend is faster by more than the noise

Rows = dict[str, dict[str, Any]]


def measure(
    shape: Shape,
    device: torch.device,
    dtype: torch.dtype,
    rounds: int,
    seconds: float | None = None,
    names: Sequence[str] = tuple(OPERATORS),
) -> Rows:
    """Time each operator for inputs of `shape`.

    Args:
        rounds, seconds: as in `take_turns`; `seconds` includes the preparation.
        names: the operators to time.

    Returns:
        name → `forward` (without gradients) and `both` (forward and backward), each with `median_ms`, `low_ms`,
        `high_ms`, `samples`, and on a GPU `peak_bytes` on top of the inputs; `backward` is the difference of the two.
        An operator that cannot run has only `why`. "auto" also has the name of its `backend` (with a backward pass).
    """
    started = time.perf_counter()
    inputs = make_inputs(shape, device, dtype)
    rows: Rows = {name: {} for name in names}
    samplers: dict[str, Sampler] = {}
    for name in rows:
        why = why_not(name, inputs)
        try:
            for kind in () if why else KINDS:
                samplers[f"{kind} {name}"], rows[name][kind] = _prepare(OPERATORS[name], kind, inputs, device)
        except Exception as error:  # the other operators go on
            why = describe_error(error)
        if why is not None:
            _drop(name, why, rows, samplers)
    remaining = None if seconds is None else max(0.0, seconds - (time.perf_counter() - started))
    samples, failures = take_turns(samplers, rounds, remaining)
    for key, why in failures.items():
        _drop(key.split(" ", 1)[1], why, rows, samplers)
    for name, row in rows.items():
        if "why" not in row:
            for kind in KINDS:
                row[kind] |= summarize(samples[f"{kind} {name}"])
            row["backward"] = {"median_ms": row["both"]["median_ms"] - row["forward"]["median_ms"]}
    if AUTO in rows:
        rows[AUTO]["backend"] = choose_backend("auto", inputs.q.detach().requires_grad_(), inputs.v)
    return rows


def _prepare(
    operator: Operator, kind: str, inputs: Inputs, device: torch.device
) -> tuple[Sampler, dict[str, Any]]:
    """Make a sampler of one operator, forward alone or with backward, and measure its memory."""
    run = operator.forward_and_backward if kind == "both" else torch.no_grad()(operator.forward)
    sampler, memory = make_sampler(functools.partial(run, inputs), device), dict[str, Any]()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run(inputs)
        memory["peak_bytes"] = torch.cuda.max_memory_allocated(device) - before
    return sampler, memory


def _drop(name: str, reason: str, rows: Rows, samplers: dict[str, Sampler]) -> None:
    """Replace an operator's results by the reason why it did not run, and free its memory."""
    rows[name] = {"why": reason}
    for kind in KINDS:
        samplers.pop(f"{kind} {name}", None)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measure_backends(device: torch.device, seconds: float, progress: Progress) -> dict[str, Any]:
    """Measure every backend on a CPU or CUDA device for about `seconds`, beside plain attention and timm's arrangement.

    Returns:
        `about` (the machine), `towers` (the shape, the choice of "auto" and the rows of `measure`, by name),
        `attention_backend` and `advice`.
    """
    shapes, dtype = SHAPES[device.type], DTYPES[device.type]
    end, rows = time.perf_counter() + seconds, {}
    for index, (tower, shape) in enumerate(shapes.items()):
        share = (end - time.perf_counter()) / (len(shapes) - index)
        rows[tower] = measure(shape, device, dtype, _MOST_ROUNDS, share)
        progress("towers", 1, len(shapes))
    auto = {tower: times[AUTO]["backend"] for tower, times in rows.items()}
    backend, line = advise(rows, auto)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    about = {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
    return {
        "about": about | {"dtype": str(dtype).removeprefix("torch.")},
        "towers": {
            tower: {"shape": asdict(shapes[tower]), "auto": auto[tower], "rows": times}
            for tower, times in rows.items()
        },
        "attention_backend": backend,
        "advice": line,
    }


def judge_kernels(device: torch.device, dtype: torch.dtype, seconds: float) -> str | None:
    """Return why "auto" should not take the fused kernels on this GPU, or None: they agree with the formula, forward
    and backward, as well as torch's fused attention does, and take less time."""
    rows: dict[str, Rows] = {}
    for tower, shape in SHAPES["cuda"].items():
        inputs = make_inputs(replace(shape, batch=8), device, dtype)
        if why := why_not(TRITON, inputs):
            return why
        try:
            found, torchs = errors_of([TRITON, SDPA], inputs)
        except Exception as error:  # a launch that fails is a verdict too
            return describe_error(error)
        if not found <= 2 * torchs + 1e-6:  # a NaN is above every limit
            return f"{tower}: relative error {found:.1e} against the formula, where sdpa has {torchs:.1e}"
        rows[tower] = measure(shape, device, dtype, _MOST_ROUNDS, seconds / 2, (TRITON, SDPA))
    failed = [(name, times[name]["why"]) for times in rows.values() for name in times if "why" in times[name]]
    if failed:
        return f"{failed[0][0]} could not be timed: {failed[0][1]}"
    ratio = _mean_time(rows, TRITON) / _mean_time(rows, SDPA)
    return None if ratio < 1 else f"the fused kernels take {ratio:.2f} times the time of sdpa"


def errors_of(names: Sequence[str], inputs: Inputs) -> list[float]:
    """Return for each operator the largest relative error of output and gradients against the formula in float64."""
    doubled = {name: x.double() for name, x in vars(inputs).items() if name != "causal"}
    exact_inputs = replace(inputs, **doubled)

    def results(name: str, inputs: Inputs) -> list[torch.Tensor]:
        with torch.no_grad():
            out = OPERATORS[name].forward(inputs)
        return [out, *OPERATORS[name].forward_and_backward(inputs)]

    exact = results("differential eager", exact_inputs)
    return [
        max(float((x - y).norm() / y.norm()) for x, y in zip(results(name, inputs), exact, strict=True))
        for name in names
    ]


def advise(rows: dict[str, Rows], auto: dict[str, str]) -> tuple[str, str]:
    """Choose the backend with the least geometric mean time over towers; return its name and one line of advice. By
    tower, `rows` has the rows of `measure`, and `auto` the backend that "auto" stands for."""

    def mean(name: str) -> float:
        return _mean_time(rows, f"differential {name}")

    best = min(BACKENDS, key=mean)
    backend = "auto" if mean("auto") <= mean(best) * _NOISE_FACTOR else best
    speeds = []
    for tower, times in rows.items():
        ratio = _time(times, TIMM) / _time(times, f"differential {backend}")
        name = f"{auto[tower]} for {tower}" if backend == "auto" else tower
        speeds.append(f"{name}, {ratio:.1f} times" if math.isfinite(ratio) else name)
    line = f'use attention_backend="{backend}": ' + "; ".join(speeds)
    return backend, f"{line} the speed of timm's arrangement, forward and backward"


def _mean_time(rows: dict[str, Rows], name: str) -> float:
    """Return the geometric mean over towers of an operator's milliseconds forward and backward."""
    return math.prod(_time(times, name) for times in rows.values()) ** (1 / len(rows))


def _time(rows: Rows, name: str) -> float:
    """Return milliseconds forward and backward, infinite for an operator that cannot run."""
    return float(rows.get(name, {}).get("both", {}).get("median_ms", math.inf))
