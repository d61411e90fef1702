"""The forward pass for rows that fit on chip: both maps of a block of queries are held whole, V is multiplied once.

A program takes one pair of heads. Its keys and values stay in shared memory while it walks over blocks of queries.
The columns of a row come in up to three chunks, powers of two, because a row of 197 padded to 256 would cost a
quarter more than one of 128 + 64 + 16. Formula: DiffCLIP (TMLR 2025), Section 3.2.
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
def _weights(
    q, k0, k1, k2, rows, tokens, scale,
    C0: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Return exp2(scale·q·kᵀ − maximum) by chunk, the rows' sums and maxima; an absent chunk repeats the first."""
    s0 = scores(q, k0, rows, tl.arange(0, C0), tokens, CAUSAL, C1 == 0)
    s1 = s0
    s2 = s0
    most = tl.max(s0, 1)
    if C1 > 0:
        s1 = scores(q, k1, rows, C0 + tl.arange(0, C1), tokens, CAUSAL, C2 == 0)
        most = tl.maximum(most, tl.max(s1, 1))
    if C2 > 0:
        s2 = scores(q, k2, rows, C0 + C1 + tl.arange(0, C2), tokens, CAUSAL, True)
        most = tl.maximum(most, tl.max(s2, 1))
    most = most * scale
    s0 = tl.exp2(s0 * scale - most[:, None])
    total = tl.sum(s0, 1)
    if C1 > 0:
        s1 = tl.exp2(s1 * scale - most[:, None])
        total += tl.sum(s1, 1)
    if C2 > 0:
        s2 = tl.exp2(s2 * scale - most[:, None])
        total += tl.sum(s2, 1)
    return s0, s1, s2, total, most


@triton.jit(do_not_specialize=SIZES)
def forward_short(
    q_ptr, k_ptr, v_ptr, lam_ptr, gain_ptr, out_ptr, stats_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, lam_b, lam_h, lam_n, out_b, out_h, out_n,
    heads, tokens, scale, eps, out_scale, split,
    SIZE: tl.constexpr, VALUE: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    C0: tl.constexpr, C1: tl.constexpr, C2: tl.constexpr, ROWS: tl.constexpr,
    CAUSAL: tl.constexpr, NORM: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """A program handles one of `split` interleaved shares of a head pair's query blocks; it fills `stats` if KEEP."""
    pair = (tl.program_id(0) // split).to(tl.int64)
    b = pair // heads
    h = pair % heads
    q1 = q_ptr + b * q_b + 2 * h * q_h
    key1 = k_ptr + b * k_b + 2 * h * k_h
    key2 = key1 + k_h
    value = v_ptr + b * v_b + h * v_h
    ka0 = load_rows(key1, 0, tokens, k_n, SIZE, C0, D)
    kb0 = load_rows(key2, 0, tokens, k_n, SIZE, C0, D)
    v0 = load_rows(value, 0, tokens, v_n, VALUE, C0, E)
    ka1, kb1, v1, ka2, kb2, v2 = ka0, kb0, v0, ka0, kb0, v0
    if C1 > 0:
        ka1 = load_rows(key1, C0, tokens, k_n, SIZE, C1, D)
        kb1 = load_rows(key2, C0, tokens, k_n, SIZE, C1, D)
        v1 = load_rows(value, C0, tokens, v_n, VALUE, C1, E)
    if C2 > 0:
        ka2 = load_rows(key1, C0 + C1, tokens, k_n, SIZE, C2, D)
        kb2 = load_rows(key2, C0 + C1, tokens, k_n, SIZE, C2, D)
        v2 = load_rows(value, C0 + C1, tokens, v_n, VALUE, C2, E)
    for start in range((tl.program_id(0) % split) * ROWS, tokens, split * ROWS):
        rows = start + tl.arange(0, ROWS)
        lam = tl.load(lam_ptr + b * lam_b + h * lam_h + rows * lam_n, mask=rows < tokens, other=0.0)
        q = load_rows(q1 + q_h, start, tokens, q_n, SIZE, ROWS, D)
        w0, w1, w2, total, most = _weights(q, kb0, kb1, kb2, rows, tokens, scale, C0, C1, C2, CAUSAL)
        # keep the second map in V's dtype, which takes half the registers, and subtract it in float32
        b0, b1, b2 = w0.to(v0.dtype), w1.to(v0.dtype), w2.to(v0.dtype)
        share = lam / total
        log2 = most + tl.log2(total)
        q = load_rows(q1, start, tokens, q_n, SIZE, ROWS, D)
        w0, w1, w2, total, most = _weights(q, ka0, ka1, ka2, rows, tokens, scale, C0, C1, C2, CAUSAL)
        if v0.dtype == tl.float16:  # λ times a ratio of sums may exceed its largest number, 65504
            before, share = (1.0 / total)[:, None], share[:, None]
        else:  # divide by the first map's sum after the product, which has fewer numbers
            before, share = 1.0, (share * total)[:, None]
        o = dot((w0 * before - b0.to(tl.float32) * share).to(v0.dtype), v0)
        if C1 > 0:
            o = dot((w1 * before - b1.to(tl.float32) * share).to(v0.dtype), v1, o)
        if C2 > 0:
            o = dot((w2 * before - b2.to(tl.float32) * share).to(v0.dtype), v2, o)
        if v0.dtype != tl.float16:
            o = o * (1.0 / total)[:, None]
        o, rstd = finish(o, gain_ptr, eps, out_scale, VALUE, E, NORM)
        store_rows(out_ptr + b * out_b + h * out_h, o, start, tokens, out_n, VALUE, ROWS, E)
        if KEEP:
            log1 = most + tl.log2(total)
            keep_statistics(stats_ptr + pair * 3 * tokens, log1, log2, rstd, rows, tokens)
