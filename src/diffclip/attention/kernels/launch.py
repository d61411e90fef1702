"""Launch the kernels with the blocks of a plan. Autograd is in operator.py.

Shapes are as in `diffclip.differential_attention`; λ is float32 [B, H, N] (any strides). The forward pass keeps `stats`
[B, H, 3, N] and `second` [B, H, N, e] for the backward pass.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from diffclip.attention.kernels.keys import backward_keys
from diffclip.attention.kernels.long import forward_long
from diffclip.attention.kernels.plan import WHOLE_ROW_TOKENS, Plan, chunks, filled, plan_for
from diffclip.attention.kernels.rows import backward_rows
from diffclip.attention.kernels.short import forward_short


def new_kept(v: Tensor, lam: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """Allocate `stats` and `second` for v [B, H, N, e], each empty if the backward pass does not need it."""
    batch, heads, tokens, _ = v.shape
    stats = lam.new_empty((batch, heads, 3, tokens) if keep else 0)
    return stats, v.new_empty(v.shape if keep and tokens > WHOLE_ROW_TOKENS else 0)


def forward(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, gain: Tensor | None,
    causal: bool, eps: float, out_scale: float, keep: bool, out: Tensor, plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fill `out` [B, H, N, e]; return `stats` and `second` as `new_kept` allocates them."""
    q, k, v = (_side_by_side(x) for x in (q, k, v))
    batch, heads, tokens, _ = v.shape
    stats, second = new_kept(v, lam, keep)
    if not v.numel():
        return stats, second
    blocks = (plan or plan_for(q, v)).forward
    pairs, query_blocks = batch * heads, triton.cdiv(tokens, blocks.rows)
    arguments = {
        **_tensors(q=q, k=k, v=v, lam=lam, out=out),
        "gain_ptr": lam if gain is None else gain.contiguous(),  # without a norm, a pointer that is not read
        "stats_ptr": stats,
        **_numbers(q, v, causal),
        "eps": eps,
        "out_scale": out_scale,
        "NORM": gain is not None,
        "KEEP": keep,
        **blocks.options(),
    }
    with _device(q):
        if not blocks.columns:
            split = blocks.split(pairs, query_blocks, q.device)
            del arguments["COLUMNS"]
            columns = dict(zip(("C0", "C1", "C2"), chunks(tokens), strict=True))
            forward_short[(pairs * split,)](**arguments, **columns, split=split)
        else:
            forward_long[(pairs * query_blocks,)](**arguments, second_ptr=second, SECOND=second.numel() > 0)
    return stats, second


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, lam: Tensor, gain: Tensor | None,
    out: Tensor, stats: Tensor, second: Tensor, causal: bool, eps: float, out_scale: float,
    dq: Tensor, dk: Tensor, dv: Tensor, plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fill dq, dk and dv; return the gradients of λ [B, H, N] and of the gain [e] (empty without one)."""
    grad, q, k, v = (_side_by_side(x) for x in (grad, q, k, v))
    batch, heads, tokens, value = v.shape
    if not v.numel():
        return lam.new_zeros(lam.shape), lam.new_zeros(0) if gain is None else torch.zeros_like(gain)
    plan = plan or plan_for(q, v)
    do = v.new_empty(v.shape)
    sums = lam.new_empty(batch, heads, tokens, 8)
    programs = batch * heads * triton.cdiv(tokens, plan.rows.rows)
    dgain = lam.new_empty((programs, filled(value)) if gain is not None else 0)
    common = {
        **_tensors(q=q, k=k, v=v),
        "do_ptr": do,
        "sums_ptr": sums,
        **_numbers(q, v, causal),
        "softmax_scale": q.shape[-1] ** -0.5,
    }
    with _device(q):
        backward_rows[(programs,)](
            **common,
            **_tensors(lam=lam, out=out, grad=grad, dq=dq),
            gain_ptr=lam if gain is None else gain.contiguous(),
            stats_ptr=stats,
            second_ptr=second,
            dgain_ptr=dgain,
            eps=eps,
            out_scale=out_scale,
            NORM=gain is not None,
            SECOND=second.numel() > 0,
            **plan.rows.options(),
        )
        backward_keys[(batch * heads * triton.cdiv(tokens, plan.keys.columns),)](
            **common, **_tensors(dk=dk, dv=dv), **plan.keys.options()
        )
    return -sums[..., 3], dgain if gain is None else dgain[:, :value].sum(0).to(gain.dtype)


def _side_by_side(x: Tensor) -> Tensor:
    """Return x, copied unless the numbers of a row are side by side, as the kernels read them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _tensors(**given: Tensor) -> dict[str, Any]:
    """Return pointers and the strides of batch, head and token, by the names of the kernels' arguments."""
    arguments: dict[str, Any] = {}
    for name, x in given.items():
        b, h, n = x.stride()[:3]
        arguments |= {f"{name}_ptr": x, f"{name}_b": b, f"{name}_h": h, f"{name}_n": n}
    return arguments


def _numbers(q: Tensor, v: Tensor, causal: bool) -> dict[str, Any]:
    """Return sizes and the scale of the scores; exponentials are to the base 2."""
    size, value = q.shape[-1], v.shape[-1]
    return {
        "heads": v.shape[1],
        "tokens": v.shape[2],
        "scale": size**-0.5 * math.log2(math.e),
        "SIZE": size,
        "VALUE": value,
        "D": filled(size),
        "E": filled(value),
        "CAUSAL": causal,
    }


def _device(x: Tensor) -> AbstractContextManager[object]:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
