"""The kernels as a torch operator with autograd, so that compilation, checkpointing and sharding work with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diffclip.attention.kernels import launch


def _new_output(v: Tensor) -> Tensor:
    """Allocate [B, H, N, e] with heads side by side in memory, as the output projection reads them."""
    batch, heads, tokens, value = v.shape
    return v.new_empty(batch, tokens, heads, value).transpose(1, 2)


@torch.library.custom_op("diffclip::fused_attention", mutates_args=())
def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, gain: Tensor | None,
    causal: bool, eps: float, out_scale: float, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return differential attention [B, H, N, e] and, if `keep`, what the backward pass needs."""
    out = _new_output(v)
    return out, *launch.forward(q, k, v, lam, gain, causal, eps, out_scale, keep, out)


@fused_attention.register_fake
def _(q, k, v, lam, gain, causal, eps, out_scale, keep):  # type: ignore[no-untyped-def]
    return _new_output(v), *launch.new_kept(v, lam, keep)


@torch.library.custom_op("diffclip::fused_attention_backward", mutates_args=())
def fused_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, lam: Tensor, gain: Tensor | None,
    out: Tensor, stats: Tensor, second: Tensor, causal: bool, eps: float, out_scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q, k, v, λ and the gain."""
    dq, dk, dv = (_new_gradient(x) for x in (q, k, v))
    grads = launch.backward(grad, q, k, v, lam, gain, out, stats, second, causal, eps, out_scale, dq, dk, dv)
    return dq, dk, dv, *grads


@fused_attention_backward.register_fake
def _(grad, q, k, v, lam, gain, out, stats, second, causal, eps, out_scale):  # type: ignore[no-untyped-def]
    dgain = lam.new_empty(0) if gain is None else gain.new_empty(gain.shape)
    return *(_new_gradient(x) for x in (q, k, v)), lam.new_empty(lam.shape), dgain


def _new_gradient(x: Tensor) -> Tensor:
    """Allocate a tensor like x, but with the numbers of a row side by side, as the kernels write them."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.eps, ctx.out_scale, _ = inputs
    ctx.set_materialize_grads(False)  # only the first output has a gradient
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    *grads, dgain = fused_attention_backward(grad, *ctx.saved_tensors, ctx.causal, ctx.eps, ctx.out_scale)
    return *grads, dgain if dgain.numel() else None, None, None, None, None


fused_attention.register_autograd(_backward, setup_context=_setup)
