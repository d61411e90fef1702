"""Measure the processor time of calling an operator without a kernel, for two ways of torch to define an operator.

    python -m benchmarks.host [--rounds 9]

Both ways have the same body, which only makes the outputs. So the time is the work on the host that a way adds to a
layer's launch on a GPU. Shapes are small, and the arguments are those of `diffclip::fused_attention_packed`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.about import parser_of

Outputs = tuple[Tensor, Tensor, Tensor]
_CALLS = 400


def _forward(
    qkv: Tensor, lam: Tensor, gain: Tensor, heads: int, causal: bool, eps: float, out_scale: float, keep: bool
) -> Outputs:
    batch, tokens, channels = qkv.shape
    return qkv.new_empty(batch, tokens, channels // 3), lam.new_empty(batch, 2, 3, tokens), qkv.new_empty(0)


def _backward(
    grad: Tensor, qkv: Tensor, lam: Tensor, gain: Tensor, out: Tensor, stats: Tensor, second: Tensor
) -> Outputs:
    return torch.empty_like(qkv), torch.empty_like(lam), torch.empty_like(gain)


def operator(kind: str) -> Callable[..., Outputs]:
    """Define the two bodies as a `custom_op` or a `triton_op` with autograd."""
    define: Any = getattr(torch.library, kind)
    forward = define(f"benchmark::{kind}", _forward, mutates_args=())
    backward = define(f"benchmark::{kind}_backward", _backward, mutates_args=())
    forward.register_autograd(
        lambda ctx, grad, *_: (*backward(grad, *ctx.saved_tensors), *(None,) * 5),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:3], *output),
    )
    return forward


def microseconds(call: Callable[..., Outputs], backward: bool) -> float:
    qkv, lam, gain = (torch.zeros(shape, requires_grad=backward) for shape in ((2, 8, 96), (2, 2, 8), (32,)))
    started = time.process_time()
    for _ in range(_CALLS):
        out = call(qkv, lam, gain, 4, False, 1e-5, 0.2, True)[0]
        if backward:
            out.sum().backward()
    return (time.process_time() - started) / _CALLS * 1e6


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways = {kind: operator(kind) for kind in ("custom_op", "triton_op")}
    taken: dict[tuple[str, bool], list[float]] = {(kind, both): [] for kind in ways for both in (False, True)}
    for _ in range(options.rounds + 1):  # the first round is to warm up
        for (kind, both), times in taken.items():
            times.append(microseconds(ways[kind], both))
    for (kind, both), times in taken.items():
        passes = "forward and backward" if both else "forward"
        print(f"{kind}, {passes}: {statistics.median(times[1:]):.0f} µs")


if __name__ == "__main__":
    main()
