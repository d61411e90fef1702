"""Search `plan.candidates` for the fastest plan, and keep the plans found in one file per GPU.

The JSON file is in the user's cache folder, named by GPU and Triton version. Without it the table's plans are used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
import triton
from torch import Tensor

from diffclip.attention.kernels import KERNELS_VERSION, launch
from diffclip.attention.kernels.plan import KERNELS, Blocks, Plan, Problem, candidates, table_plan
from diffclip.files import cache_folder, write_text

Recorder = Callable[[str, Blocks, float | Exception], None]
_MILLISECONDS = 20  # of measuring a candidate, after as many of warm-up


def cached(problem: Problem, device: torch.device) -> Plan | None:
    """Return the plan that an earlier search found; None if there is none, or if it is no longer a candidate."""
    plan = read_plans(plan_file(device)).get(_key(problem))
    shared = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    known = plan and all(getattr(plan, kernel) in candidates(kernel, problem, shared) for kernel in KERNELS)
    return plan if known else None


def search(problem: Problem, q: Tensor, v: Tensor, record: Recorder | None = None) -> Plan | None:
    """Find the fastest blocks of each kernel, one kernel after the other, for tensors like q and v.

    Return None if no candidate of some kernel runs, because that is no measurement to keep. `record` is called for
    every candidate with its milliseconds, or with the error if it does not compile or fit.
    """
    shared = torch.cuda.get_device_properties(q.device).shared_memory_per_block_optin
    best = table_plan(problem, shared)
    for kernel in KERNELS:
        quickest = float("inf")
        for blocks in candidates(kernel, problem, shared):
            trial = replace(best, **{kernel: blocks})
            found: float | Exception
            try:
                found = time_pass(kernel, trial, problem, q, v)
            except Exception as error:  # any error of the compiler or driver rules it out
                found = error
            if record:
                record(kernel, blocks, found)
            if isinstance(found, float) and found < quickest:
                quickest, choice = found, trial
        if quickest == float("inf"):
            return None
        best = choice
    return best


def time_pass(kernel: str, plan: Plan, problem: Problem, q: Tensor, v: Tensor) -> float:
    """Return the median milliseconds of the pass, forward or backward, that `kernel` belongs to."""
    batch, heads, tokens, value = v.shape
    # a generator of its own, because a search must not change a run's random numbers
    generator = torch.Generator(q.device).manual_seed(0)
    # strides and a shared λ as in a layer, because Triton compiles for those
    q, k, v, dq, dk, dv = (_random_like(x, generator) for x in (q, q, v, q, q, v))
    lam = torch.full((), 0.8, device=q.device).expand(batch, heads, tokens)
    gain = torch.ones(value, device=q.device)
    out = v.new_empty(batch, tokens, heads, value).transpose(1, 2)

    def forward() -> tuple[Tensor, Tensor]:
        return launch.forward(q, k, v, lam, gain, problem.causal, 1e-5, 0.2, True, out, plan)

    stats, second = forward()
    grad = _random_like(out, generator)

    def backward() -> None:
        launch.backward(
            grad, q, k, v, lam, gain, out, stats, second, problem.causal, 1e-5, 0.2, dq, dk, dv, plan
        )

    work = forward if kernel == "forward" else backward
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        return float(triton.testing.do_bench(work, _MILLISECONDS, _MILLISECONDS, return_mode="median"))


def _random_like(x: Tensor, generator: torch.Generator) -> Tensor:
    made = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)
    return made.normal_(generator=generator)


def plan_file(device: torch.device) -> Path:
    """Return the path of the file with a GPU's measured plans."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", torch.cuda.get_device_name(device)).strip("-")
    return cache_folder() / "kernels" / f"v{KERNELS_VERSION}_{name}_triton-{triton.__version__}.json"


def keep(problem: Problem, plan: Plan, file: Path) -> None:
    """Add a plan to `file`; raise `InputError` if the file cannot be written."""
    plans = {key: asdict(old) for key, old in read_plans(file).items()} | {_key(problem): asdict(plan)}
    write_text(file, json.dumps(plans, indent=1))


def read_plans(file: Path) -> dict[str, Plan]:
    """Return the plans in `file`; none if it is missing or damaged."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {
            key: Plan(**{kernel: Blocks(**blocks) for kernel, blocks in plan.items()})
            for key, plan in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _key(problem: Problem) -> str:
    return " ".join(f"{name}={value}" for name, value in asdict(problem).items())
