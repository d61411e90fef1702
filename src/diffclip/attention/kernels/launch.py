"""The kernels' launches: tensors and plan in, results out. No autograd here.

Shapes as in `diffclip.differential_attention`; λ is float32 [B, H, N] (any strides), `stats` [3, B, H, N] and `second`
[B, H, N, e] are what the forward pass keeps for the backward one.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
from torch import Tensor

from diffclip.attention.kernels.keys import backward_keys
from diffclip.attention.kernels.long import forward_long
from diffclip.attention.kernels.plan import Plan, chunks, filled, keeps_second, plan_for
from diffclip.attention.kernels.rows import backward_rows
from diffclip.attention.kernels.short import forward_short


def forward(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, gain: Tensor | None,
    causal: bool, eps: float, out_scale: float, keep: bool, out: Tensor, plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fill `out` [B, H, N, e]; returns `stats` and `second`, empty where the backward pass has no use for them."""
    q, k, v = (_side_by_side(x) for x in (q, k, v))
    batch, heads, tokens, _ = v.shape
    stats = lam.new_empty((3, batch, heads, tokens) if keep else 0)
    second = v.new_empty(v.shape if keep and keeps_second(tokens) else 0)
    if not v.numel():
        return stats, second
    blocks = (plan or plan_for(q, v, causal)).forward
    common = (*_strides(q), *_strides(k), *_strides(v), *lam.stride(), *_strides(out), heads, tokens)
    numbers = (_log2_scale(q), eps, out_scale, batch * heads * tokens)
    sizes = {**_sizes(q, v), "CAUSAL": causal, "NORM": gain is not None, "KEEP": keep}
    options = blocks.options()
    weight = lam if gain is None else gain.contiguous()  # without a norm, a pointer that is not read
    query_blocks = triton.cdiv(tokens, blocks.rows)
    with _device(q):
        if blocks.whole_rows:
            split = blocks.split(batch * heads, query_blocks, q.device)
            del options["COLUMNS"]
            named = dict(zip(("C0", "C1", "C2"), chunks(tokens), strict=True))
            forward_short[(batch * heads * split,)](
                q, k, v, lam, weight, out, stats, *common, *numbers, split, **sizes, **named, **options
            )  # fmt: skip
        else:
            forward_long[(batch * heads * query_blocks,)](
                q, k, v, lam, weight, out, stats, second, *common, *numbers,
                **sizes, SECOND=second.numel() > 0, **options,
            )  # fmt: skip
    return stats, second


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, lam: Tensor, gain: Tensor | None,
    out: Tensor, stats: Tensor, second: Tensor, causal: bool, eps: float, out_scale: float,
    dq: Tensor, dk: Tensor, dv: Tensor, plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fill dq, dk and dv; returns the gradients of λ [B, H, N] and of the gain [e] (empty without one)."""
    grad, q, k, v = (_side_by_side(x) for x in (grad, q, k, v))
    batch, heads, tokens, value = v.shape
    if not v.numel():
        return lam.new_zeros(lam.shape), lam.new_zeros(0) if gain is None else torch.zeros_like(gain)
    plan = plan or plan_for(q, v, causal)
    sizes = {**_sizes(q, v), "CAUSAL": causal}
    rows, keys = plan.rows, plan.keys
    do = v.new_empty(v.shape)
    sums = lam.new_empty(2, batch, heads, tokens)
    programs = batch * heads * triton.cdiv(tokens, rows.rows)
    dgain = lam.new_empty((programs, filled(value)) if gain is not None else 0)
    inputs = (*_strides(q), *_strides(k), *_strides(v), *lam.stride())
    numbers = (heads, tokens, _log2_scale(q), q.shape[-1] ** -0.5)
    stats_size = batch * heads * tokens
    with _device(q):
        backward_rows[(programs,)](
            q, k, v, lam, lam if gain is None else gain.contiguous(), out, stats, second, grad, dq, do, sums, dgain,
            *inputs, *_strides(out), *_strides(grad), *_strides(dq), *numbers, eps, out_scale, stats_size,
            **sizes, **rows.options(), NORM=gain is not None, SECOND=second.numel() > 0,
        )  # fmt: skip
        backward_keys[(batch * heads * triton.cdiv(tokens, keys.columns),)](
            q, k, v, lam, stats, do, sums, dk, dv, *inputs, *_strides(dk), *_strides(dv), *numbers, stats_size,
            **sizes, **keys.options(),
        )  # fmt: skip
    return -sums[1], dgain if gain is None else dgain[:, :value].sum(0).to(gain.dtype)


def _side_by_side(x: Tensor) -> Tensor:
    """x, copied if the numbers of a row do not lie side by side, as the kernels read them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(x: Tensor) -> tuple[int, ...]:
    """Of batch, head and token."""
    return x.stride()[:3]


def _log2_scale(q: Tensor) -> float:
    """1/√d, for exponentials to the base 2."""
    return float(q.shape[-1] ** -0.5 * math.log2(math.e))


def _sizes(q: Tensor, v: Tensor) -> dict[str, int]:
    size, value = q.shape[-1], v.shape[-1]
    return {"SIZE": size, "VALUE": value, "D": filled(size), "E": filled(value)}


def _device(x: Tensor) -> AbstractContextManager[object]:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
