"""Blocks: how rows are cut, what fits shared memory, and that every choice of blocks gives the same numbers."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from parity import DEVICE, assert_near, draw, exact, poisoned
from torch import Tensor

from diffclip.attention.kernels import launch
from diffclip.attention.kernels.plan import (
    Blocks,
    Plan,
    Problem,
    candidates,
    chunks,
    filled,
    keeps_second,
    table_plan,
)

KIB = 1024
KERNELS = ("forward", "rows", "keys")


def test_chunks_are_few_powers_of_two_that_just_hold_a_row() -> None:
    sums = sorted({sum(three) for three in product([0, 16, 32, 64, 128, 256], repeat=3)})
    for tokens in range(1, 257):
        parts = [part for part in chunks(tokens) if part]
        assert chunks(tokens) == (*parts, *(0,) * (3 - len(parts))), tokens
        assert all(part >= 16 and part & (part - 1) == 0 for part in parts), tokens
        assert all(a > b for a, b in pairwise(parts)), tokens
        assert sum(parts[:-1]) < tokens <= sum(parts), tokens
        # no three powers of two hold it in less
        assert sum(parts) == next(total for total in sums if total >= tokens), tokens


@pytest.mark.parametrize("limit", [99 * KIB, 163 * KIB, 227 * KIB])
@pytest.mark.parametrize("size", [16, 32, 64, 80, 128])
def test_every_plan_fits_shared_memory(size: int, limit: int) -> None:
    for tokens, value, width, causal in product(
        (1, 50, 77, 197, 256, 257, 4097), (size, 2 * size), (2, 4), (False, True)
    ):
        problem = Problem(tokens, size, value, width, causal)
        plan = table_plan(problem, limit)
        for kernel in KERNELS:
            assert problem.shared(kernel, getattr(plan, kernel)) <= limit, (problem, kernel)
            fitting = candidates(kernel, problem, limit)
            assert getattr(plan, kernel) == fitting[0]
            assert len(set(fitting)) == len(fitting)


def test_head_sizes_are_filled_up_to_powers_of_two() -> None:
    assert [filled(size) for size in (1, 16, 17, 32, 64, 80, 128, 160, 256)] == [
        16, 16, 32, 32, 64, 128, 128, 256, 256
    ]  # fmt: skip


def test_a_short_row_is_shared_by_more_programs_where_there_are_few_pairs() -> None:
    blocks, cpu = Blocks(16, 0, 4, 1), torch.device("cpu")
    assert [blocks.split(pairs, 5, cpu) for pairs in (1, 2, 100)] == [2, 1, 1]
    assert blocks.split(1, 1, cpu) == 1


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


def test_a_row_is_whole_or_in_blocks_and_keeps_the_same_statistics() -> None:
    q, k, v, lam, gain = (x.detach() for x in list(vars(draw(1, 1, 70, 16, 32)).values())[:5])
    assert not keeps_second(70)
    stats = []
    for columns in (0, 16):
        blocks = Blocks(64, columns, 4, 1)
        out = torch.empty_like(v)
        kept = launch.forward(q, k, v, lam, gain, True, 1e-5, 1.0, True, out, Plan(blocks, blocks, blocks))
        assert kept[1].numel() == 0
        stats.append(kept[0])
    torch.testing.assert_close(stats[0], stats[1])
