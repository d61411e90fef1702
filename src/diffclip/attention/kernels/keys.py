"""The backward pass by keys: dk and dv. Each program walks over the queries that see its keys."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclip.attention.kernels.tiles import SIZES, dot, load_rows, statistic, store_rows


@triton.jit(do_not_specialize=SIZES)
def backward_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, sums_ptr, dk_ptr, dv_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    heads, tokens, scale, softmax_scale,
    SIZE: tl.constexpr, VALUE: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Each program handles one block of keys of one pair of heads; `do` and `sums` come from `backward_rows`.

    Maps and their gradients are made transposed, [C, M]: keys down, queries across.
    """
    blocks = tl.cdiv(tokens, COLUMNS)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks) * COLUMNS
    b = pair // heads
    h = pair % heads
    q1 = q_ptr + b * q_b + 2 * h * q_h
    key1 = k_ptr + b * k_b + 2 * h * k_h
    columns = column + tl.arange(0, COLUMNS)
    ka = load_rows(key1, column, tokens, k_n, SIZE, COLUMNS, D)
    kb = load_rows(key1 + k_h, column, tokens, k_n, SIZE, COLUMNS, D)
    v = load_rows(v_ptr + b * v_b + h * v_h, column, tokens, v_n, VALUE, COLUMNS, E)
    numbers = tl.arange(0, 8)[:, None]
    dka = tl.zeros([COLUMNS, D], dtype=tl.float32)
    dkb = tl.zeros([COLUMNS, D], dtype=tl.float32)
    dv = tl.zeros([COLUMNS, E], dtype=tl.float32)
    for start in range(column // ROWS * ROWS if CAUSAL else 0, tokens, ROWS):
        rows = start + tl.arange(0, ROWS)
        # one load for all numbers of a row; an infinite logarithm makes the weights of rows past the end 0
        tile = tl.load(
            sums_ptr + (pair * tokens + rows)[None, :] * 8 + numbers,
            mask=(rows < tokens)[None, :] & (numbers < 5),
            other=tl.where(numbers < 2, float("inf"), 0.0),
        )
        log1, log2 = statistic(tile, 0), statistic(tile, 1)
        r1, r2, lam = statistic(tile, 2), statistic(tile, 3), statistic(tile, 4)
        qa = load_rows(q1, start, tokens, q_n, SIZE, ROWS, D)
        qb = load_rows(q1 + q_h, start, tokens, q_n, SIZE, ROWS, D)
        do = load_rows(do_ptr + pair * tokens * VALUE, start, tokens, VALUE, VALUE, ROWS, E)
        a = tl.exp2(dot(ka, tl.trans(qa)) * scale - log1)
        c = lam * tl.exp2(dot(kb, tl.trans(qb)) * scale - log2)
        if CAUSAL:
            seen = rows[None, :] >= columns[:, None]
            a = tl.where(seen, a, 0.0)
            c = tl.where(seen, c, 0.0)
        dv = dot((a - c).to(do.dtype), do, dv)
        g = dot(v, tl.trans(do))
        dka = dot((a * (g - r1)).to(qa.dtype), qa, dka)
        dkb = dot((c * (g - r2)).to(qb.dtype), qb, dkb)
    dk1 = dk_ptr + b * dk_b + 2 * h * dk_h
    store_rows(dk1, dka * softmax_scale, column, tokens, dk_n, SIZE, COLUMNS, D)
    store_rows(dk1 + dk_h, dkb * -softmax_scale, column, tokens, dk_n, SIZE, COLUMNS, D)
    store_rows(dv_ptr + b * dv_b + h * dv_h, dv, column, tokens, dv_n, VALUE, COLUMNS, E)
