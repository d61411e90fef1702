"""The forward pass for rows of any length: two online softmaxes share the loads of V.

Three products of the size of plain attention's two, memory linear in the tokens. Online softmax: arXiv:2205.14135.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffclip.attention.kernels.tiles import dot, finish, keep_statistics, load_rows, scores, store_rows


@triton.jit
def _online(acc, total, most, s, v, scale):
    """An online softmax after scores s [M, C]: numerator [M, E], sum [M] and maximum [M], the latter times scale."""
    now = tl.maximum(most, tl.max(s, 1) * scale)
    w = tl.exp2(s * scale - now[:, None])
    fade = tl.exp2(most - now)
    return dot(w.to(v.dtype), v, acc * fade[:, None]), total * fade + tl.sum(w, 1), now


@triton.jit
def forward_long(
    q_ptr, k_ptr, v_ptr, lam_ptr, gain_ptr, out_ptr, stats_ptr, second_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, lam_b, lam_h, lam_n, out_b, out_h, out_n,
    heads, tokens, scale, eps, out_scale, stats_size,
    SIZE: tl.constexpr, VALUE: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, NORM: tl.constexpr,
    KEEP: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Program: one block of queries of one pair of heads. `stats` only if KEEP, `second`, A2·V, only if SECOND."""
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
    acc1 = tl.zeros([ROWS, E], dtype=tl.float32)
    acc2 = tl.zeros([ROWS, E], dtype=tl.float32)
    total1 = tl.zeros([ROWS], dtype=tl.float32)
    total2 = tl.zeros([ROWS], dtype=tl.float32)
    most1 = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    most2 = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    # blocks that every row sees whole need no mask
    whole = (start if CAUSAL else tokens) // COLUMNS * COLUMNS
    seen = tl.minimum(start + ROWS, tokens) if CAUSAL else tokens
    for column in range(0, whole, COLUMNS):
        columns = column + tl.arange(0, COLUMNS)
        v = load_rows(value, column, tokens, v_n, VALUE, COLUMNS, E)
        k = load_rows(key1, column, tokens, k_n, SIZE, COLUMNS, D)
        s = scores(qa, k, rows, columns, tokens, False, False)
        acc1, total1, most1 = _online(acc1, total1, most1, s, v, scale)
        k = load_rows(key1 + k_h, column, tokens, k_n, SIZE, COLUMNS, D)
        s = scores(qb, k, rows, columns, tokens, False, False)
        acc2, total2, most2 = _online(acc2, total2, most2, s, v, scale)
    for column in range(whole, seen, COLUMNS):
        columns = column + tl.arange(0, COLUMNS)
        v = load_rows(value, column, tokens, v_n, VALUE, COLUMNS, E)
        k = load_rows(key1, column, tokens, k_n, SIZE, COLUMNS, D)
        s = scores(qa, k, rows, columns, tokens, CAUSAL, not CAUSAL)
        acc1, total1, most1 = _online(acc1, total1, most1, s, v, scale)
        k = load_rows(key1 + k_h, column, tokens, k_n, SIZE, COLUMNS, D)
        s = scores(qb, k, rows, columns, tokens, CAUSAL, not CAUSAL)
        acc2, total2, most2 = _online(acc2, total2, most2, s, v, scale)
    lam = tl.load(lam_ptr + b * lam_b + h * lam_h + rows * lam_n, mask=rows < tokens, other=0.0)
    acc2 = acc2 / total2[:, None]
    if SECOND:
        store_rows(second_ptr + pair * tokens * VALUE, acc2, start, tokens, VALUE, VALUE, ROWS, E)
    o = acc1 / total1[:, None] - lam[:, None] * acc2
    o, rstd = finish(o, gain_ptr, eps, out_scale, VALUE, E, NORM)
    store_rows(out_ptr + b * out_b + h * out_h, o, start, tokens, out_n, VALUE, ROWS, E)
    if KEEP:
        log1, log2 = most1 + tl.log2(total1), most2 + tl.log2(total2)
        keep_statistics(stats_ptr + pair * tokens, log1, log2, rstd, rows, tokens, stats_size)
