"""The forward pass for rows of any length: two online softmaxes share the loads of V.

Work: three products where plain attention has two. Memory: linear in the tokens. Online softmax: arXiv:2205.14135.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffclip.attention.kernels.tiles import (
    SIZES,
    dot,
    finish,
    keep_statistics,
    load_rows,
    scores,
    store_rows,
)


@triton.jit
def _online(acc, total, most, s, v, scale):
    """Update an online softmax with scores s [M, C]: numerator [M, E], sum [M], and maximum times scale [M]."""
    now = tl.maximum(most, tl.max(s, 1) * scale)
    w = tl.exp2(s * scale - now[:, None])
    fade = tl.exp2(most - now)
    return dot(w.to(v.dtype), v, acc * fade[:, None]), total * fade + tl.sum(w, 1), now


@triton.jit
def _both_maps(
    first, second, qa, qb, key1, value, rows, column, tokens, scale, k_h, k_n, v_n,
    SIZE: tl.constexpr, VALUE: tl.constexpr, D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Update both online softmaxes with one more block of keys; both use its values."""
    acc1, total1, most1 = first
    acc2, total2, most2 = second
    columns = column + tl.arange(0, COLUMNS)
    v = load_rows(value, column, tokens, v_n, VALUE, COLUMNS, E)
    k = load_rows(key1, column, tokens, k_n, SIZE, COLUMNS, D)
    s = scores(qa, k, rows, columns, tokens, CAUSAL, TAIL)
    acc1, total1, most1 = _online(acc1, total1, most1, s, v, scale)
    k = load_rows(key1 + k_h, column, tokens, k_n, SIZE, COLUMNS, D)
    s = scores(qb, k, rows, columns, tokens, CAUSAL, TAIL)
    acc2, total2, most2 = _online(acc2, total2, most2, s, v, scale)
    return (acc1, total1, most1), (acc2, total2, most2)


@triton.jit(do_not_specialize=SIZES)
def forward_long(
    q_ptr, k_ptr, v_ptr, lam_ptr, gain_ptr, out_ptr, stats_ptr, second_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, lam_b, lam_h, lam_n, out_b, out_h, out_n,
    heads, tokens, scale, eps, out_scale,
    SIZE: tl.constexpr, VALUE: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, NORM: tl.constexpr,
    KEEP: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Each program handles one block of queries of a head pair. It fills `stats` if KEEP, `second` (A2·V) if SECOND."""
    blocks = tl.cdiv(tokens, ROWS)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    start = (tl.program_id(0) % blocks) * ROWS
    b = pair // heads
    h = pair % heads
    q1 = q_ptr + b * q_b + 2 * h * q_h
    key1 = k_ptr + b * k_b + 2 * h * k_h
    value = v_ptr + b * v_b + h * v_h
    rows = start + tl.arange(0, ROWS)
    qa = load_rows(q1, start, tokens, q_n, SIZE, ROWS, D)
    qb = load_rows(q1 + q_h, start, tokens, q_n, SIZE, ROWS, D)
    zeros = tl.zeros([ROWS, E], dtype=tl.float32)
    none = tl.zeros([ROWS], dtype=tl.float32)
    least = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    first = zeros, none, least
    second = zeros, none, least
    # blocks that every row sees whole need no mask
    whole = (start if CAUSAL else tokens) // COLUMNS * COLUMNS
    seen = tl.minimum(start + ROWS, tokens) if CAUSAL else tokens
    for column in range(0, whole, COLUMNS):
        first, second = _both_maps(
            first, second, qa, qb, key1, value, rows, column, tokens, scale, k_h, k_n, v_n,
            SIZE, VALUE, D, E, COLUMNS, False, False,
        )  # fmt: skip
    for column in range(whole, seen, COLUMNS):
        first, second = _both_maps(
            first, second, qa, qb, key1, value, rows, column, tokens, scale, k_h, k_n, v_n,
            SIZE, VALUE, D, E, COLUMNS, CAUSAL, not CAUSAL,
        )  # fmt: skip
    acc1, total1, most1 = first
    acc2, total2, most2 = second
    lam = tl.load(lam_ptr + b * lam_b + h * lam_h + rows * lam_n, mask=rows < tokens, other=0.0)
    acc2 = acc2 / total2[:, None]
    if SECOND:
        store_rows(second_ptr + pair * tokens * VALUE, acc2, start, tokens, VALUE, VALUE, ROWS, E)
    o = acc1 / total1[:, None] - lam[:, None] * acc2
    o, rstd = finish(o, gain_ptr, eps, out_scale, VALUE, E, NORM)
    store_rows(out_ptr + b * out_b + h * out_h, o, start, tokens, out_n, VALUE, ROWS, E)
    if KEEP:
        log1, log2 = most1 + tl.log2(total1), most2 + tl.log2(total2)
        keep_statistics(stats_ptr + pair * 3 * tokens, log1, log2, rstd, rows, tokens)
