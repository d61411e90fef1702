"""Shared parts of the kernels: loading and storing tiles, scores with their masks, the head norm.

Names: M rows of queries, C columns of keys; SIZE and VALUE are the head sizes d and e, D and E the same padded to a
power of two. Exponentials are to the base 2, so `scale` is log2(e)/√d. Sums are float32, products IEEE.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Arguments whose new values, for example in a smaller last batch, must not make Triton compile again.
SIZES = ["tokens", "split"]


@triton.jit
def load_rows(base, start, tokens, stride, SIZE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows start … start + ROWS of a [tokens, SIZE] matrix as [ROWS, WIDTH], with 0 outside the matrix."""
    rows = start + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = rows[:, None] < tokens
    if WIDTH != SIZE:
        inside = inside & (columns[None, :] < SIZE)
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(
    base, values, start, tokens, stride, SIZE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Store values as `load_rows` loads them, in the dtype of the target."""
    rows = start + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = rows[:, None] < tokens
    if WIDTH != SIZE:
        inside = inside & (columns[None, :] < SIZE)
    target = base + rows[:, None] * stride + columns[None, :]
    tl.store(target, values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def dot(a, b, acc=None):
    """Return acc + a·b in float32; float32 operands are multiplied in IEEE precision, not in TF32."""
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def scores(q, k, rows, columns, tokens, CAUSAL: tl.constexpr, TAIL: tl.constexpr):
    """Return q·kᵀ [M, C], with −∞ for keys that a row must not see: past itself if CAUSAL, past the end if TAIL."""
    s = dot(q, tl.trans(k))
    if CAUSAL:
        s = tl.where(rows[:, None] >= columns[None, :], s, float("-inf"))
    if TAIL:
        s = tl.where(columns[None, :] < tokens, s, float("-inf"))
    return s


@triton.jit
def finish(o, gain_ptr, eps, out_scale, VALUE: tl.constexpr, E: tl.constexpr, NORM: tl.constexpr):
    """Apply the head norm with its gain (if NORM) and the factor to o [M, E]; return it and 1 / RMS of each row."""
    rstd = tl.rsqrt(tl.sum(o * o, 1) / VALUE + eps)
    if NORM:
        columns = tl.arange(0, E)
        gain = tl.load(gain_ptr + columns, mask=columns < VALUE, other=0.0).to(tl.float32)
        return o * rstd[:, None] * (gain * out_scale)[None, :], rstd
    else:
        return o * out_scale, rstd


@triton.jit
def keep_statistics(stats_ptr, log1, log2, rstd, rows, tokens):
    """Store the statistics of rows for the backward pass in one pair's part [3, N] of `stats`."""
    tl.store(stats_ptr + rows, log1, mask=rows < tokens)
    tl.store(stats_ptr + tokens + rows, log2, mask=rows < tokens)
    tl.store(stats_ptr + 2 * tokens + rows, rstd, mask=rows < tokens)


@triton.jit
def statistic(tile, index: tl.constexpr):
    """Return row `index` of the statistics [8, M] of M queries, as [1, M]."""
    of_tile = tl.arange(0, 8)[:, None]
    return tl.sum(tl.where(of_tile == index, tile, 0.0), 0)[None, :]
