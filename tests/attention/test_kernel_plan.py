"""Blocks: what fits shared memory, and that every choice of blocks gives the same numbers."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from parity import DEVICE, assert_near, draw, exact, poisoned
from torch import Tensor

from diffclip.attention.kernels import launch
from diffclip.attention.kernels.plan import KERNELS, Blocks, Plan, Problem, candidates, chunks, table_plan

KIB = 1024


@pytest.mark.parametrize("limit", [99 * KIB, 163 * KIB, 227 * KIB])
@pytest.mark.parametrize("size", [16, 32, 64, 80, 128])
def test_every_plan_fits_shared_memory(size: int, limit: int) -> None:
    for tokens, value, width in product((1, 77, 256, 257, 4097), (size, 2 * size), (2, 4)):
        problem = Problem(tokens, size, value, width, False)
        plan = table_plan(problem, limit)
        for kernel in KERNELS:
            assert problem.shared(kernel, getattr(plan, kernel)) <= limit, (problem, kernel)


def test_chunks_just_hold_a_row() -> None:
    for tokens in range(1, 257):
        parts = [part for part in chunks(tokens) if part]
        assert all(part >= 16 and part & (part - 1) == 0 for part in parts), tokens
        assert sum(parts[:-1]) < tokens <= sum(parts), tokens


def all_candidates(kernel: str) -> list[Blocks]:
    """Of every type, width and length; all give the same numbers, so that one input serves."""
    problems = [
        Problem(tokens, 16, value, width, False)
        for tokens, value, width in product((150, 300), (32, 256), (2, 4))
    ]
    found = [blocks for problem in problems for blocks in candidates(kernel, problem)]
    return sorted({(b.rows, b.columns): b for b in found}.values(), key=lambda b: (b.rows, b.columns))


def passes(tokens: int, plan: Plan, causal: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the kernels make of one pair of heads with `plan`, and what the formula does."""
    inputs = draw(1, 1, tokens, 16, 32)
    q, k, v, lam, gain = (x if x is None else x.detach() for x in list(vars(inputs).values())[:5])
    with poisoned():
        out = torch.empty_like(v)
        kept = launch.forward(q, k, v, lam, gain, causal, 1e-5, 0.2, True, out, plan)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        dlam, dgain = launch.backward(
            inputs.grad, q, k, v, lam, gain, out, *kept, causal, 1e-5, 0.2, dq, dk, dv, plan
        )
    return {"out": out, "q": dq, "k": dk, "v": dv, "lam": dlam, "gain": dgain}, exact(inputs, causal, 0.2)


SAFE = Blocks(32, 32, 4, 1) if DEVICE == "cuda" else Blocks(128, 128, 4, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_choice_of_blocks_gives_the_same_numbers(kernel: str, causal: bool) -> None:
    for blocks in all_candidates(kernel):
        tokens = max(blocks.rows, blocks.columns) + 5  # a whole block and a bit
        if DEVICE == "cuda" and Problem(tokens, 16, 32, 4, causal).shared(kernel, blocks) > 99 * KIB:
            continue
        plan = Plan(**{name: blocks if name == kernel else SAFE for name in KERNELS})
        found, expected = passes(tokens, plan, causal)
        try:
            assert_near(found, expected, 1e-5)
        except AssertionError as failed:
            raise AssertionError(f"{blocks}: {failed}") from None
