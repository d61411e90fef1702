"""Block sizes: plans fit shared memory, and every choice gives the same numbers."""

from itertools import product

import pytest
import torch
from parity import DEVICE, assert_near, draw, exact, poisoned
from torch import Tensor

from diffclip.attention.kernels import launch
from diffclip.attention.kernels.plan import KERNELS, Blocks, Plan, Problem, choose_blocks, table_plan

KIB = 1024


@pytest.mark.parametrize("limit", [99 * KIB, 163 * KIB, 227 * KIB])
def test_every_plan_fits_shared_memory(limit: int) -> None:
    sizes = (16, 32, 64, 80, 128), (1, 2)
    for tokens, size, times, width in product((1, 77, 256, 257, 4097), *sizes, (2, 4)):
        problem = Problem(tokens, size, times * size, width)
        plan = table_plan(problem, limit)
        for kernel in KERNELS:
            assert problem.shared(kernel, getattr(plan, kernel)) <= limit, (problem, kernel)


def all_blocks_of(kernel: str) -> list[Blocks]:
    """List blocks for every type, width, length and GPU. All give the same numbers, so one input serves for all."""
    cases = product((150, 300), (32, 256), (2, 4), (16 * KIB, 99 * KIB, 227 * KIB))
    all_blocks = [choose_blocks(kernel, Problem(n, 16, e, width), limit) for n, e, width, limit in cases]
    return sorted({(b.rows, b.columns): b for b in all_blocks}.values(), key=lambda b: (b.rows, b.columns))


def passes(tokens: int, plan: Plan, causal: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Compute one pair of heads with the kernels under `plan`, and with the formula."""
    inputs = draw(1, 1, tokens, 16, 32)
    q, k, v, lam, gain = (x if x is None else x.detach() for x in list(vars(inputs).values())[:5])
    with poisoned():
        out = torch.empty_like(v)
        saved = launch.forward(q, k, v, lam, gain, causal, 1e-5, 0.2, True, out, plan)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        dlam, dgain = launch.backward(
            inputs.grad, q, k, v, lam, gain, out, *saved, causal, 1e-5, 0.2, dq, dk, dv, plan
        )
    return {"out": out, "q": dq, "k": dk, "v": dv, "lam": dlam, "gain": dgain}, exact(inputs, causal, 0.2)


SAFE = Blocks(32, 32, 4, 1) if DEVICE == "cuda" else Blocks(128, 128, 4, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_choice_of_blocks_gives_the_same_numbers(kernel: str, causal: bool) -> None:
    for blocks in all_blocks_of(kernel):
        tokens = max(blocks.rows, blocks.columns) + 5  # one block and 5 tokens more
        if DEVICE == "cuda" and Problem(tokens, 16, 32, 4).shared(kernel, blocks) > 99 * KIB:
            continue
        plan = Plan(**{name: blocks if name == kernel else SAFE for name in KERNELS})
        actual, expected = passes(tokens, plan, causal)
        assert_near(actual, expected, 1e-5)
