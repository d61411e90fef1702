"""The attention operators to compare, on inputs as in a layer: views of the output of one projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from diffclip.attention import fused
from diffclip.attention.dispatch import BACKENDS, differential_attention, softmax_attention
from diffclip.attention.heads import split_heads

LAMBDA = 0.79  # as in a layer, early in training
PLAIN, AUTO, TIMM = "plain auto", "differential auto", "differential timm"
SDPA, TRITON = "differential sdpa", "differential triton"


@dataclass(frozen=True)
class Shape:
    """Self-attention with `heads` query heads of width `size`, in pairs, and half as many values of twice the width."""

    batch: int
    heads: int
    tokens: int
    size: int = 64
    causal: bool = False

    @property
    def width(self) -> int:
        """C, the width of all queries; keys and values have the same."""
        return self.heads * self.size


@dataclass(frozen=True)
class Inputs:
    """q, k [B, 2·H, N, d], v [B, H, N, 2·d] and [B, 2·H, N, d] (`plain_v`), λ and O's gradient [B, N, C]."""

    q: Tensor
    k: Tensor
    v: Tensor
    plain_v: Tensor
    lam: Tensor
    grad: Tensor
    causal: bool


Run = Callable[[Inputs], Tensor]


@dataclass(frozen=True)
class Operator:
    """`run` returns [B, heads, N, size of a value]; `plain` operators take `plain_v`."""

    run: Run
    plain: bool = False

    def forward(self, inputs: Inputs) -> Tensor:
        """Return the input of the output projection, [B, N, C]; this copies if the heads are not side by side yet."""
        return self.run(inputs).transpose(1, 2).flatten(2)

    def forward_and_backward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return the gradients of q, k and v."""
        v = inputs.plain_v if self.plain else inputs.v
        q, k, v = (x.detach().requires_grad_() for x in (inputs.q, inputs.k, v))
        leaves = Inputs(q, k, v, v, inputs.lam, inputs.grad, inputs.causal)
        return torch.autograd.grad(self.forward(leaves), (q, k, v), inputs.grad)


def make_inputs(shape: Shape, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Draw random inputs of `shape`, the same at every call."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(width: int) -> Tensor:
        size = (shape.batch, shape.tokens, width)
        return torch.randn(size, device=device, dtype=dtype, generator=generator)

    qkv, grad = draw(3 * shape.width), draw(shape.width)
    q, k, v = split_heads(qkv, shape.heads, shape.heads // 2)
    plain_v = split_heads(qkv, shape.heads, shape.heads)[2]
    return Inputs(q, k, v, plain_v, torch.tensor(LAMBDA, device=device), grad, shape.causal)


def timm_arrangement(q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool) -> Tensor:
    """Compute as timm's `DiffAttention` (timm/layers/diff_attention.py): two fused calls with wide values."""
    first = F.scaled_dot_product_attention(q[:, 0::2], k[:, 0::2], v, is_causal=causal)
    second = F.scaled_dot_product_attention(q[:, 1::2], k[:, 1::2], v, is_causal=causal)
    return first - lam.type_as(first) * second


def _differential(backend: str) -> Operator:
    return Operator(lambda x: differential_attention(x.q, x.k, x.v, x.lam, x.causal, backend))


OPERATORS = {
    PLAIN: Operator(lambda x: softmax_attention(x.q, x.k, x.plain_v, x.causal), plain=True),
    **{f"differential {name}": _differential(name) for name in ("auto", *BACKENDS)},
    TIMM: Operator(lambda x: timm_arrangement(x.q, x.k, x.v, x.lam, x.causal)),
}


def why_not(name: str, inputs: Inputs) -> str | None:
    """Return why the operator `name` cannot take `inputs` (another backend would replace its own), or None."""
    return fused.why_not_fused(inputs.q, inputs.v) if "triton" in name else None
