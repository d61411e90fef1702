"""Measured plans: the search over `plan.candidates`, and one file per GPU that keeps what it found.

The file lies in the user's cache folder, named by GPU and Triton version; it is JSON, and losing it costs a search.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
import triton
from torch import Tensor

from diffclip.attention.kernels import launch
from diffclip.attention.kernels.plan import KERNELS, Blocks, Plan, Problem, candidates, table_plan
from diffclip.errors import InputError
from diffclip.files import cache_folder, write_text

_log = logging.getLogger(__name__)
_KERNELS_VERSION = 2  # raise it when a kernel changes, so that what was measured is measured again
Seen = Callable[[str, Blocks, float | Exception], None]
_MILLISECONDS = 20  # of measuring a candidate, after as many of warming up


def cached(problem: Problem, device: torch.device) -> Plan | None:
    """The plan that an earlier search found, or None; one that is no longer a candidate is not taken."""
    plan = read_plans(plan_file(device)).get(_key(problem))
    shared = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    known = plan and all(getattr(plan, kernel) in candidates(kernel, problem, shared) for kernel in KERNELS)
    return plan if known else None


def search(problem: Problem, q: Tensor, v: Tensor, seen: Seen | None = None) -> Plan | None:
    """The quickest blocks of each kernel, one kernel after the other, for tensors like q and v.

    None if no candidate of some kernel runs: that is no measurement to keep.

    `seen` is told of every candidate: its milliseconds, or the error for one that does not compile or fit.
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
            except Exception as error:  # whatever a compiler or a driver says: it is no candidate here
                found = error
            if seen:
                seen(kernel, blocks, found)
            if isinstance(found, float) and found < quickest:
                quickest, choice = found, trial
        if quickest == float("inf"):
            return None
        best = choice
    return best


def time_pass(kernel: str, plan: Plan, problem: Problem, q: Tensor, v: Tensor) -> float:
    """Median milliseconds of the pass, forward or backward, that `kernel` belongs to."""
    batch, heads, tokens, value = v.shape
    # strides and a shared λ as a layer has them, since Triton compiles for those
    generator = torch.Generator(q.device).manual_seed(
        0
    )  # its own: a search must not move a run's random numbers
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
    """Path of the measured plans of a GPU."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", torch.cuda.get_device_name(device)).strip("-")
    return cache_folder() / "kernels" / f"v{_KERNELS_VERSION}_{name}_triton-{triton.__version__}.json"


def keep(problem: Problem, plan: Plan, file: Path) -> None:
    """Add a plan to `file`; where it cannot be written the search is repeated the next time."""
    plans = {key: asdict(old) for key, old in read_plans(file).items()} | {_key(problem): asdict(plan)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(plans, indent=1))
    except (OSError, InputError) as error:
        _log.warning("the measured kernel plan is not kept: %s", error)


def read_plans(file: Path) -> dict[str, Plan]:
    """The plans in `file`; none where it is missing or damaged."""
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
