"""The formula over blocks of rows, for CPUs: the maps of a few heads and rows at a time, which the cache still holds.

(A1 − λ·A2)·V takes one product with V, where two fused calls take two, and memory is linear in the tokens: the backward
pass makes the maps again (arXiv:2205.14135). Maps, λ and sums are float32 at least, products in the inputs' type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Elements of one map of a block: two heads by 136 rows at 2305 tokens. Measured on two cores that share 32 MiB of
# cache: from 0.55 to 0.8 million the time is flat, a million costs a quarter more (docs/log.md).
_BLOCK_ELEMENTS = 640 * 1024


def differential(q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool) -> Tensor:
    """(A1 − λ·A2)·V before the head norm: q, k [B, 2·H, N, d], v [B, H, N, e], λ as `lambdas.per_head` shapes it."""
    batch, heads, tokens, _ = v.shape
    out: Tensor = _forward(q, k, v, lam.expand(batch, heads, tokens, 1), causal)
    return out


class _Heads:
    """Heads `h` … `h + together` of one sample, scores scaled through the keys; G heads, R rows, K keys of a block."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, lam: Tensor, b: int, h: int, together: int) -> None:
        self.pairs = [(b, slice(2 * h + i, 2 * (h + together), 2)) for i in (0, 1)]
        self.values = (b, slice(h, h + together))
        self.q = [q[pair] for pair in self.pairs]
        self.k = [k[pair] * q.shape[-1] ** -0.5 for pair in self.pairs]
        self.v = v[self.values].contiguous()
        self.lam = lam[self.values]

    def maps(
        self, rows: slice, keys: int, causal: bool, into: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """A1 and A2 [G, R, K] of some rows, written into two flat buffers."""
        size = (len(self.v), rows.stop - rows.start, keys)
        first, second = (buffer[: size[0] * size[1] * size[2]].view(size) for buffer in into)
        for q, k, a in zip(self.q, self.k, (first, second), strict=True):
            s = _product(q[:, rows], k[:, :keys].mT, a)
            if causal:  # what lies past a row is in the last square of the block
                future = torch.ones(size[1], size[1], dtype=torch.bool, device=q.device).triu(1)
                s[..., rows.start :].masked_fill_(future, float("-inf"))
            torch.softmax(s, dim=-1, out=a)
        return first, second


def _walk(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool, buffers: int
) -> Iterator[tuple[_Heads, list[tuple[slice, int]], list[Tensor]]]:
    """Groups of heads, the blocks of each (rows, and how many keys they see), and flat buffers for maps."""
    batch, heads, tokens, _ = v.shape
    together = max(1, min(heads, _BLOCK_ELEMENTS // (tokens * min(tokens, 128))))
    while heads % together:
        together -= 1
    rows = max(1, min(tokens, _BLOCK_ELEMENTS // (together * tokens)))
    rows = -(-tokens // -(-tokens // rows))  # blocks of like size
    starts = range(0, tokens, rows)
    blocks = [slice(start, min(start + rows, tokens)) for start in starts]
    scratch = list(q.new_empty(buffers, together * rows * tokens, dtype=lam.dtype))
    for b in range(batch):
        for h in range(0, heads, together):
            seen = [(block, block.stop if causal else tokens) for block in blocks]
            yield _Heads(q, k, v, lam, b, h, together), seen, scratch


@torch.library.custom_op("diffclip::blocked_attention", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool) -> Tensor:
    batch, heads, tokens, value = v.shape
    out = v.new_empty(batch, tokens, heads, value).transpose(1, 2)
    for group, blocks, (one, two) in _walk(q, k, v, lam, causal, buffers=2):
        for rows, keys in blocks:
            first, second = group.maps(rows, keys, causal, (one, two))
            first.addcmul_(group.lam[:, rows], second, value=-1)
            out[group.values][:, rows] = torch.bmm(first.to(v.dtype), group.v[:, :keys])
    return out


@torch.library.custom_op("diffclip::blocked_attention_backward", mutates_args=())
def _backward_of(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and λ [B, H, N, 1]."""
    scale = q.shape[-1] ** -0.5
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    dlam = lam.new_empty(lam.shape)
    for group, blocks, (one, two, three) in _walk(q, k, v, lam, causal, buffers=3):
        dk_group = [torch.zeros_like(key, dtype=lam.dtype) for key in group.k]
        dv_group = torch.zeros_like(group.v, dtype=lam.dtype)
        for rows, keys in blocks:
            first, second = group.maps(rows, keys, causal, (one, two))
            spare = three[: first.numel()].view(first.shape)
            lam_rows, grad_rows = group.lam[:, rows], grad[group.values][:, rows]
            torch.addcmul(first, lam_rows, second, value=-1, out=spare)
            _add(dv_group[:, :keys], spare.mT, grad_rows)
            through = _product(grad_rows, group.v[:, :keys].mT, spare)
            for which, (a, factor) in enumerate(((first, None), (second, -lam_rows))):
                if factor is not None:
                    torch.mul(second, through, out=first)
                    dlam[group.values][:, rows] = -first.sum(-1, keepdim=True)
                # in place: row by row the map is read before it is written
                torch._softmax_backward_data(through, a, -1, lam.dtype, grad_input=a)
                to_q = torch.bmm(a.to(q.dtype), group.k[which][:, :keys])
                q_rows = group.q[which][:, rows]
                if factor is not None:  # λ scales rows: cheaper on a query than on its row of the map
                    to_q, q_rows = to_q * factor, (q_rows * factor).to(q.dtype)
                dq[group.pairs[which]][:, rows] = to_q.to(q.dtype)
                _add(dk_group[which][:, :keys], a.mT, q_rows, scale)
        dv[group.values] = dv_group.to(v.dtype)
        for pair, part in zip(group.pairs, dk_group, strict=True):
            dk[pair] = part.to(k.dtype)
    return dq, dk, dv, dlam


def _product(a: Tensor, b: Tensor, into: Tensor) -> Tensor:
    """a·b, made in their type, in `into`."""
    if into.dtype == a.dtype:
        return torch.bmm(a, b, out=into)
    return into.copy_(torch.bmm(a, b))


def _add(total: Tensor, a: Tensor, b: Tensor, factor: float = 1.0) -> None:
    """total += factor·a·b, with the product in b's type and the sum in total's."""
    if total.dtype == b.dtype:
        torch.baddbmm(total, a, b, alpha=factor, out=total)
    else:
        total.add_(torch.bmm(a.to(b.dtype), b), alpha=factor)


@_forward.register_fake
def _(q, k, v, lam, causal):  # type: ignore[no-untyped-def]
    batch, heads, tokens, value = v.shape
    return v.new_empty(batch, tokens, heads, value).transpose(1, 2)


@_backward_of.register_fake
def _(grad, q, k, v, lam, causal):  # type: ignore[no-untyped-def]
    return *(torch.empty_like(x) for x in (q, k, v)), lam.new_empty(lam.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.causal = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward_of(grad, *ctx.saved_tensors, ctx.causal), None


_forward.register_autograd(_backward, setup_context=_setup)
