"""Block sizes of the kernels, by the shape of the inputs and the shared memory of the GPU."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Rows up to this length may be held whole. For longer rows, forward keeps A2·V, to save backward a loop over the keys.
WHOLE_ROW_TOKENS = 256
KERNELS = ("forward", "rows", "keys")
_UNLIMITED = 1 << 62  # the shared memory of the interpreter


@dataclass(frozen=True)
class Blocks:
    """Queries and keys that a program handles at a time; `columns` 0 means whole rows (the short forward)."""

    rows: int
    columns: int
    warps: int
    stages: int

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of a launch."""
        names = {"ROWS": self.rows, "COLUMNS": self.columns}
        # Triton 3.9 warns if `enable_fp_fusion` is not given
        return {**names, "num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}

    def split(self, pairs: int, query_blocks: int, device: torch.device) -> int:
        """Return the number of programs that share a pair of heads: one, or enough to fill the GPU twice."""
        processors = _properties(device).multi_processor_count if device.type == "cuda" else 1
        return max(1, min(query_blocks, -(-2 * processors // pairs)))


@dataclass(frozen=True)
class Plan:
    """The blocks of the forward kernel, of `backward_rows` and of `backward_keys`."""

    forward: Blocks
    rows: Blocks
    keys: Blocks


@dataclass(frozen=True)
class Problem:
    """The facts that a plan depends on: tokens, head sizes and bytes per element."""

    tokens: int
    size: int
    value: int
    bytes: int

    def shared(self, kernel: str, blocks: Blocks) -> int:
        """Return the least shared memory of `kernel`, in bytes: operands that stay there and those being loaded."""
        d, e = filled(self.size), filled(self.value)
        if not blocks.columns:
            kept = sum(chunks(self.tokens)) * (2 * d + e) + blocks.rows * d
        elif kernel == "keys":
            statistics = blocks.stages * blocks.rows * 8 * 4 // self.bytes
            kept = (blocks.columns + blocks.stages * blocks.rows) * (2 * d + e) + statistics
        else:
            kept = blocks.stages * blocks.columns * (2 * d + e) + blocks.rows * (
                2 * d + (e if kernel == "rows" else 0)
            )
        return kept * self.bytes


def filled(size: int) -> int:
    """Return the power of two, at least 16, to which a head size is padded."""
    return max(16, 1 << (size - 1).bit_length())


def chunks(tokens: int) -> tuple[int, int, int]:
    """Split a row's columns into up to three powers of two (0 for an absent one), at least `tokens` in all."""
    rest, parts = -(-tokens // 16) * 16, list[int]()
    while rest > 0:
        part = 1 << (rest.bit_length() - 1)
        if len(parts) == 2 and part < rest:
            part *= 2
        parts.append(part)
        rest -= part
    if len(parts) == 3 and parts[1] == parts[2]:  # rounding up made two equal parts
        parts = [parts[0], 2 * parts[1]]
    if len(parts) == 2 and parts[0] == parts[1]:
        parts = [2 * parts[0]]
    first, second, third, *_ = [*parts, 0, 0]
    return first, second, third


# bfloat16 and float16, values up to 128 wide; by kernel and whether rows are long. The second entry is for GPUs with
# less shared memory. With 2 stages a loop waits for the copies that it has just started, with 3 for older ones
# (benchmarks/compiled.py shows what that costs on sm_90).
_HALF = {
    ("forward", False): [Blocks(64, 0, 4, 1), Blocks(64, 32, 4, 3)],
    ("forward", True): [Blocks(128, 64, 8, 3), Blocks(128, 64, 8, 2)],
    ("rows", False): [Blocks(64, 32, 4, 3), Blocks(64, 32, 4, 2)],
    ("rows", True): [Blocks(128, 32, 8, 3), Blocks(128, 32, 8, 2)],
    ("keys", False): [Blocks(32, 64, 4, 3), Blocks(32, 64, 4, 2)],
    ("keys", True): [Blocks(32, 128, 8, 3), Blocks(32, 128, 8, 2)],
}


def choose_blocks(kernel: str, problem: Problem, shared: int) -> Blocks:
    """Return the blocks of "forward", "rows" or "keys"; the smallest if none of the table fits `shared` bytes."""
    is_wide = filled(problem.value) > 128
    if problem.bytes == 4:  # IEEE products run outside the tensor cores, and registers hold half as much
        fitting = [] if is_wide else [Blocks(16, 16, 4, 1)]
    elif is_wide:  # two accumulators of 256 columns leave registers for few rows
        fitting = [Blocks(32, 32, 4, 3), Blocks(32, 32, 4, 2)]
    else:
        fitting = _HALF[kernel, problem.tokens > WHOLE_ROW_TOKENS]
    return next(
        (blocks for blocks in fitting if problem.shared(kernel, blocks) <= shared), Blocks(16, 16, 8, 1)
    )


@functools.cache
def table_plan(problem: Problem, shared: int = _UNLIMITED) -> Plan:
    """Return the plan for GPUs with `shared` bytes of shared memory for a program."""
    return Plan(*(choose_blocks(kernel, problem, shared) for kernel in KERNELS))


def plan_for(q: Tensor, v: Tensor) -> Plan:
    """Return the plan for q [B, 2·H, N, d] and v [B, H, N, e]."""
    problem = Problem(q.shape[-2], q.shape[-1], v.shape[-1], q.element_size())
    shared = _properties(q.device).shared_memory_per_block_optin if q.is_cuda else _UNLIMITED
    return table_plan(problem, shared)


@functools.cache
def _properties(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)
