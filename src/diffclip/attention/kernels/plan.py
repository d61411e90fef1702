"""Block sizes of the kernels: a table, and the choices that `diffclip bench --tune` measured.

`diffclip bench --tune` searches for the quickest blocks of a shape (some seconds). It keeps them in the user's cache
folder for each GPU and Triton version, and every later process takes them from there.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Rows up to this length may be held whole. For longer rows, forward keeps A2·V, to save backward a loop over the keys.
WHOLE_ROW_TOKENS = 256
KERNELS = ("forward", "rows", "keys")
_H200_SHARED = 232_448


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
    """The facts that a plan depends on: tokens, head sizes, bytes per element, and whether it is causal."""

    tokens: int
    size: int
    value: int
    bytes: int
    causal: bool

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


def candidates(kernel: str, problem: Problem, shared: int = _H200_SHARED) -> list[Blocks]:
    """Return blocks to try for "forward", "rows" or "keys", the default first; the smallest if none fits `shared`."""
    if problem.bytes == 4:  # IEEE products run outside the tensor cores, and registers hold half as much
        small = filled(problem.value) <= 128
        found = [Blocks(16, 16, 4, 1), Blocks(32, 32, 8, 1)] if small else [Blocks(16, 16, 8, 1)]
    elif filled(problem.value) > 128:  # two accumulators of 256 columns leave registers for few rows
        found = [Blocks(32, 32, 4, 3), Blocks(32, 32, 4, 2), Blocks(64, 32, 8, 3), Blocks(16, 32, 4, 1)]
    else:
        found = _HALF[kernel, problem.tokens > WHOLE_ROW_TOKENS]
    if kernel == "forward" and problem.tokens <= WHOLE_ROW_TOKENS and filled(problem.value) <= 128:
        whole = [Blocks(64, 0, 4, 1), Blocks(128, 0, 8, 1)]
        found = [*whole, *found] if problem.bytes == 2 else [*found, Blocks(16, 0, 4, 1)]
    fitting = [blocks for blocks in found if problem.shared(kernel, blocks) <= shared]
    return fitting or [Blocks(16, 16, 8, 1)]


# bfloat16 and float16, values up to 128 wide; by kernel and whether rows are long. With 2 stages a loop waits for the
# copies that it has just started, with 3 or 4 for older ones (benchmarks/compiled.py shows what that costs on sm_90).
_HALF = {
    ("forward", False): [Blocks(64, 32, 4, 3), Blocks(64, 64, 4, 2), Blocks(128, 64, 8, 3)],
    ("forward", True): [
        Blocks(128, 64, 8, 3),
        Blocks(128, 64, 8, 2),
        Blocks(64, 64, 4, 3),
        Blocks(128, 32, 8, 4),
        Blocks(64, 32, 4, 3),
    ],
    ("rows", False): [
        Blocks(64, 32, 4, 3),
        Blocks(64, 32, 4, 2),
        Blocks(64, 32, 4, 4),
        Blocks(128, 32, 8, 3),
        Blocks(64, 16, 4, 3),
    ],
    ("rows", True): [
        Blocks(128, 32, 8, 3),
        Blocks(128, 32, 8, 2),
        Blocks(128, 64, 8, 2),
        Blocks(64, 32, 4, 3),
        Blocks(64, 32, 4, 4),
    ],
    ("keys", False): [
        Blocks(32, 64, 4, 3),
        Blocks(32, 64, 4, 2),
        Blocks(32, 64, 4, 4),
        Blocks(16, 64, 4, 3),
        Blocks(32, 128, 8, 3),
    ],
    ("keys", True): [
        Blocks(32, 128, 8, 3),
        Blocks(32, 128, 8, 2),
        Blocks(64, 128, 8, 2),
        Blocks(32, 64, 4, 3),
        Blocks(32, 64, 4, 4),
    ],
}


def problem_of(q: Tensor, v: Tensor, causal: bool) -> Problem:
    """Return the problem of q [B, 2·H, N, d] and v [B, H, N, e]."""
    return Problem(q.shape[-2], q.shape[-1], v.shape[-1], q.element_size(), causal)


@functools.cache
def table_plan(problem: Problem, shared: int = _H200_SHARED) -> Plan:
    """Return the plan of each kernel's first candidate."""
    return Plan(*(candidates(kernel, problem, shared)[0] for kernel in KERNELS))


@functools.cache
def _properties(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)
