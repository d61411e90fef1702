"""Differential attention over blocks of rows, for CPUs. The maps of a few heads and rows at a time fit into the cache.

(A1 − λ·A2)·V takes one product with V, two fused calls take two. Memory is linear in the tokens, because the backward
pass recomputes the maps (arXiv:2205.14135). Maps, λ and sums are float32 at least, products in the inputs' dtype.

Each thread works through one share of the work alone, then takes the next one. torch's own loops split every operation
among all cores and wait for the slowest core, which takes most of the time on a busy machine.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Elements of one map of a block: 142 rows of one head at 2305 tokens. From 0.16 to 0.64 million the time is flat on
# two cores that share 32 MiB of cache (benchmarks/log.md); smaller products are slow.
_BLOCK_ELEMENTS = 320 * 1024


class _Share(NamedTuple):
    """A unit of work for one thread: blocks of rows of one sample, for the heads from `first` to before `end`."""

    sample: int
    first: int
    end: int
    blocks: list[slice]
    part: int  # index of this share among the shares of these heads


def differential(q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool) -> Tensor:
    """(A1 − λ·A2)·V before the head norm: q, k [B, 2·H, N, d], v [B, H, N, e], λ as `lambdas.per_head` shapes it."""
    return _forward(q, k, v, lam.expand(*v.shape[:3], 1), causal)


def _shares(v: Tensor) -> list[_Share]:
    """Divide the work for v [B, H, N, e] into at least two shares per thread, if there are enough blocks."""
    batch, heads, tokens, _ = v.shape
    group_size = max(1, min(heads, _BLOCK_ELEMENTS // (tokens * min(tokens, 128))))
    while heads % group_size:
        group_size -= 1
    rows = max(1, min(tokens, _BLOCK_ELEMENTS // (group_size * tokens)))
    rows = -(-tokens // -(-tokens // rows))  # blocks of similar size
    blocks = [slice(start, min(start + rows, tokens)) for start in range(0, tokens, rows)]
    groups = batch * heads // group_size
    parts = min(len(blocks), -(-2 * torch.get_num_threads() // groups)) if groups else 1
    return [
        _Share(b, h, h + group_size, blocks[part::parts], part)
        for b in range(batch)
        for h in range(0, heads, group_size)
        for part in range(parts)
    ]


class _Heads:
    """A thread's copies of its current share. Shapes: G heads, R rows, K keys of a block.

    Memory is allocated once per thread, because a fresh page costs as much as the arithmetic on it.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, lam: Tensor, share: _Share, buffers: int) -> None:
        self._tensors = (q, k, v, lam)
        heads, rows = share.end - share.first, max(block.stop - block.start for block in share.blocks)
        self.scratch = lam.new_empty(buffers, heads * rows * v.shape[2])
        self.k = k.new_empty(2, heads, *k.shape[2:])
        self.v = v.new_empty(heads, *v.shape[2:])

    def take(self, share: _Share) -> None:
        """Copy the heads of `share`; the copied keys contain the scale of the scores."""
        q, k, v, lam = self._tensors
        self.pairs = [(share.sample, slice(2 * share.first + i, 2 * share.end, 2)) for i in (0, 1)]
        self.values = (share.sample, slice(share.first, share.end))
        self.q = [q[pair] for pair in self.pairs]
        for pair, buffer in zip(self.pairs, self.k, strict=True):
            torch.mul(k[pair], q.shape[-1] ** -0.5, out=buffer)
        self.v.copy_(v[self.values])
        self.lam = lam[self.values]

    def maps(self, rows: slice, keys: int, causal: bool) -> tuple[Tensor, Tensor]:
        """Compute A1 and A2 [G, R, K] of `rows`, in the first two buffers."""
        size = (len(self.v), rows.stop - rows.start, keys)
        first, second = (buffer[: size[0] * size[1] * size[2]].view(size) for buffer in self.scratch[:2])
        for q, k, a in zip(self.q, self.k, (first, second), strict=True):
            scores = _product(q[:, rows], k[:, :keys].mT, a)
            if causal:  # keys past a row are only in the last square of the block
                future = torch.ones(size[1], size[1], dtype=torch.bool, device=q.device).triu(1)
                scores[..., rows.start :].masked_fill_(future, float("-inf"))
            torch.softmax(scores, dim=-1, out=a)
        return first, second


@functools.cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Start threads whose torch operations use no further threads; a forked process (id `process`) starts its own."""
    started = threading.Barrier(threads + 1)

    def start() -> None:
        torch.set_num_threads(1)  # for this thread, and for threads that first use torch later
        started.wait()

    pool = ThreadPoolExecutor(threads, "attention", initializer=start)
    for _ in range(threads):
        pool.submit(int)
    started.wait()
    torch.set_num_threads(threads)  # for threads that first use torch later
    return pool


def _share_out(shares: list[_Share], work: Callable[[Iterator[_Share]], None]) -> None:
    """Run `work` in as many threads as torch uses; each share goes to the first thread that is free."""
    if not shares:  # an empty batch
        return None
    threads = min(torch.get_num_threads(), len(shares))
    queue = iter(shares)
    if threads < 2:
        return work(queue)

    inference = torch.is_inference_mode_enabled()  # the mode is per thread

    def run() -> None:
        with torch.inference_mode(inference), torch.no_grad():
            work(queue)

    pool = _pool(os.getpid(), torch.get_num_threads())
    for future in [pool.submit(run) for _ in range(threads)]:
        future.result()


@torch.library.custom_op("diffclip::blocked_attention", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool) -> Tensor:
    batch, heads, tokens, value = v.shape
    out = v.new_empty(batch, tokens, heads, value).transpose(1, 2)
    shares = _shares(v)

    def work(queue: Iterator[_Share]) -> None:
        group = _Heads(q, k, v, lam, shares[0], buffers=2)
        for share in queue:
            group.take(share)
            for rows in share.blocks:
                keys = rows.stop if causal else tokens
                first, second = group.maps(rows, keys, causal)
                first.addcmul_(group.lam[:, rows], second, value=-1)
                torch.bmm(first.to(v.dtype), group.v[:, :keys], out=out[group.values][:, rows])

    _share_out(shares, work)
    return out


@torch.library.custom_op("diffclip::blocked_attention_backward", mutates_args=())
def _backward_of(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and λ [B, H, N, 1]."""
    tokens, scale = q.shape[-2], q.shape[-1] ** -0.5
    dq, dlam = torch.empty_like(q), lam.new_empty(lam.shape)
    shares = _shares(v)
    parts = max((share.part + 1 for share in shares), default=1)
    # each part of the rows has its own sums, so that every run adds them in the same order
    dks, dvs = ([torch.empty_like(x, dtype=lam.dtype) for _ in range(parts)] for x in (k, v))

    def work(queue: Iterator[_Share]) -> None:
        group = _Heads(q, k, v, lam, shares[0], buffers=3)
        for share in queue:
            group.take(share)
            dk = [dks[share.part][pair].zero_() for pair in group.pairs]
            dv = dvs[share.part][group.values].zero_()
            for rows in share.blocks:
                keys = rows.stop if causal else tokens
                first, second = group.maps(rows, keys, causal)
                spare = group.scratch[2][: first.numel()].view(first.shape)
                lam_rows, grad_rows = group.lam[:, rows], grad[group.values][:, rows]
                torch.addcmul(first, lam_rows, second, value=-1, out=spare)
                _add(dv[:, :keys], spare.mT, grad_rows)
                grad_map = _product(grad_rows, group.v[:, :keys].mT, spare)
                for index, (a, factor) in enumerate(((first, None), (second, -lam_rows))):
                    if factor is not None:
                        torch.mul(second, grad_map, out=first)
                        dlam[group.values][:, rows] = -first.sum(-1, keepdim=True)
                    # in place is safe: each row of the map is read before it is written
                    torch._softmax_backward_data(grad_map, a, -1, lam.dtype, grad_input=a)
                    to_q = torch.bmm(a.to(q.dtype), group.k[index][:, :keys])
                    q_rows = group.q[index][:, rows]
                    if factor is not None:  # λ scales rows: cheaper on a query than on its row of the map
                        to_q, q_rows = to_q * factor, (q_rows * factor).to(q.dtype)
                    dq[group.pairs[index]][:, rows] = to_q.to(q.dtype)
                    _add(dk[index][:, :keys], a.mT, q_rows, scale)

    _share_out(shares, work)
    dk, dv = (functools.reduce(Tensor.add_, sums) for sums in (dks, dvs))
    return dq, dk.to(k.dtype), dv.to(v.dtype), dlam


def _product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Compute a·b in their dtype, and store it in `out`."""
    if out.dtype == a.dtype:
        return torch.bmm(a, b, out=out)
    return out.copy_(torch.bmm(a, b))


def _add(total: Tensor, a: Tensor, b: Tensor, factor: float = 1.0) -> None:
    """total += factor·a·b, with the product in b's dtype and the sum in total's."""
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
