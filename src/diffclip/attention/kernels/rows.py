"""The backward pass by rows (queries): dq, the gradient before the head norm, dλ, and the sums of the softmaxes.

With G = dO·Vᵀ, softmax backward is A1∘(G − r1) and −λ·A2∘(G − r2), where r1 = rowsum(A1∘G) and r2 = rowsum(A2∘G) =
−dλ of the row. The difference r1 − λ·r2 is dO·o, which is known without a product, so that only r2 is computed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffclip.attention.kernels.tiles import SIZES, dot, load_rows, scores, store_rows


@triton.jit(do_not_specialize=SIZES)
def backward_rows(
    q_ptr, k_ptr, v_ptr, lam_ptr, gain_ptr, out_ptr, stats_ptr, second_ptr, grad_ptr,
    dq_ptr, do_ptr, sums_ptr, dgain_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, lam_b, lam_h, lam_n, out_b, out_h, out_n,
    grad_b, grad_h, grad_n, dq_b, dq_h, dq_n,
    heads, tokens, scale, softmax_scale, eps, out_scale,
    SIZE: tl.constexpr, VALUE: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, NORM: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Each program handles one block of queries of one pair of heads.

    It writes dq, `do` [B, H, N, e], `sums` [B, H, N, 8] (both logarithms, r1, r2 and λ of a row, side by side for
    `backward_keys`) and, if NORM, this block's part of the gain's gradient. `second` is A2·V if SECOND; without it,
    r2 takes a pass over the keys.
    """
    blocks = tl.cdiv(tokens, ROWS)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    start = (tl.program_id(0) % blocks) * ROWS
    b = pair // heads
    h = pair % heads
    q1 = q_ptr + b * q_b + 2 * h * q_h
    key1 = k_ptr + b * k_b + 2 * h * k_h
    value = v_ptr + b * v_b + h * v_h
    rows = start + tl.arange(0, ROWS)
    inside = rows < tokens
    seen = tl.minimum(start + ROWS, tokens) if CAUSAL else tokens
    stats = stats_ptr + pair * 3 * tokens + rows
    log1 = tl.load(stats, mask=inside, other=0.0)[:, None]
    log2 = tl.load(stats + tokens, mask=inside, other=0.0)[:, None]
    lam = tl.load(lam_ptr + b * lam_b + h * lam_h + rows * lam_n, mask=inside, other=0.0)
    qa = load_rows(q1, start, tokens, q_n, SIZE, ROWS, D)
    qb = load_rows(q1 + q_h, start, tokens, q_n, SIZE, ROWS, D)
    out = load_rows(out_ptr + b * out_b + h * out_h, start, tokens, out_n, VALUE, ROWS, E).to(tl.float32)
    grad = load_rows(grad_ptr + b * grad_b + h * grad_h, start, tokens, grad_n, VALUE, ROWS, E).to(tl.float32)

    if NORM:
        each = tl.arange(0, E)
        gain = tl.load(gain_ptr + each, mask=each < VALUE, other=1.0).to(tl.float32)
        factor = gain * out_scale
        rstd = tl.load(stats + 2 * tokens, mask=inside, other=0.0)[:, None]
        if tl.min(tl.abs(factor)) > 1e-3:
            normed = out / factor[None, :]
        else:  # a gain near 0 has erased the normed output: compute it again
            normed = tl.zeros([ROWS, E], dtype=tl.float32)
            for column in range(0, seen, COLUMNS):
                columns = column + tl.arange(0, COLUMNS)
                v = load_rows(value, column, tokens, v_n, VALUE, COLUMNS, E)
                k = load_rows(key1, column, tokens, k_n, SIZE, COLUMNS, D)
                p = tl.exp2(scores(qa, k, rows, columns, tokens, CAUSAL, not CAUSAL) * scale - log1)
                k = load_rows(key1 + k_h, column, tokens, k_n, SIZE, COLUMNS, D)
                a = tl.exp2(scores(qb, k, rows, columns, tokens, CAUSAL, not CAUSAL) * scale - log2)
                normed = dot((p - lam[:, None] * a).to(v.dtype), v, normed)
            normed = normed * rstd
        tl.store(dgain_ptr + tl.program_id(0).to(tl.int64) * E + each, tl.sum(grad * normed, 0) * out_scale)
        grad = grad * factor[None, :]
        along = tl.sum(grad * normed, 1)[:, None] / VALUE
        difference = tl.sum(along * (eps * VALUE) * rstd * rstd, 1)
        do = rstd * (grad - normed * along)
    else:
        difference = tl.sum(grad * out, 1)
        do = grad * out_scale

    if SECOND:
        kept = load_rows(second_ptr + pair * tokens * VALUE, start, tokens, VALUE, VALUE, ROWS, E)
        r2 = tl.sum(do * kept.to(tl.float32), 1)
    do = do.to(do_ptr.dtype.element_ty)
    store_rows(do_ptr + pair * tokens * VALUE, do, start, tokens, VALUE, VALUE, ROWS, E)
    if not SECOND:
        r2 = tl.zeros([ROWS], dtype=tl.float32)
        for column in range(0, seen, COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            v = load_rows(value, column, tokens, v_n, VALUE, COLUMNS, E)
            k = load_rows(key1 + k_h, column, tokens, k_n, SIZE, COLUMNS, D)
            a = tl.exp2(scores(qb, k, rows, columns, tokens, CAUSAL, not CAUSAL) * scale - log2)
            r2 += tl.sum(a * dot(do, tl.trans(v)), 1)
    r1 = lam * r2 + difference
    sums = sums_ptr + (pair * tokens + rows) * 8
    tl.store(sums, tl.sum(log1, 1), mask=inside)
    tl.store(sums + 1, tl.sum(log2, 1), mask=inside)
    tl.store(sums + 2, r1, mask=inside)
    tl.store(sums + 3, r2, mask=inside)
    tl.store(sums + 4, lam, mask=inside)

    dqa = tl.zeros([ROWS, D], dtype=tl.float32)
    dqb = tl.zeros([ROWS, D], dtype=tl.float32)
    for column in range(0, seen, COLUMNS):
        columns = column + tl.arange(0, COLUMNS)
        g = dot(do, tl.trans(load_rows(value, column, tokens, v_n, VALUE, COLUMNS, E)))
        k = load_rows(key1, column, tokens, k_n, SIZE, COLUMNS, D)
        a = tl.exp2(scores(qa, k, rows, columns, tokens, CAUSAL, not CAUSAL) * scale - log1)
        dqa = dot((a * (g - r1[:, None])).to(k.dtype), k, dqa)
        k = load_rows(key1 + k_h, column, tokens, k_n, SIZE, COLUMNS, D)
        a = tl.exp2(scores(qb, k, rows, columns, tokens, CAUSAL, not CAUSAL) * scale - log2)
        dqb = dot((a * (g - r2[:, None])).to(k.dtype), k, dqb)
    dq1 = dq_ptr + b * dq_b + 2 * h * dq_h
    store_rows(dq1, dqa * softmax_scale, start, tokens, dq_n, SIZE, ROWS, D)
    store_rows(dq1 + dq_h, dqb * (-softmax_scale * lam)[:, None], start, tokens, dq_n, SIZE, ROWS, D)
