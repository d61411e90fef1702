"""Search `plan.candidates` for the fastest plan of a shape on this GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import triton
from torch import Tensor

from diffclip.attention.kernels import launch
from diffclip.attention.kernels.plan import KERNELS, Blocks, Plan, Problem, candidates, table_plan

Recorder = Callable[[str, Blocks, float | Exception], None]
_MILLISECONDS = 20  # of measuring a candidate, after as many of warm-up


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
