"""Self-attention layers with one fused projection for queries, keys and values.

All layers take timm's constructor arguments, so that each can be the `attn_layer` of timm's `VisionTransformer`. The
text tower uses them too. Apart from `qkv`, the differential layer's parameters have the published code's names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffclip.attention import eager
from diffclip.attention.dispatch import differential_attention_packed, softmax_attention
from diffclip.attention.heads import by_head, finish_heads, split_heads
from diffclip.attention.lambdas import accumulation_dtype, per_head
from diffclip.config import lambda_init_of_layer
from diffclip.errors import InputError, say_once

HEAD_NORM_EPS = 1e-5
LAMBDA_VECTORS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The maps of one layer, float32 at least. `first` [B, H, N, N]; `second` and `lam` are None in a plain layer.

    The maps were computed from `queries` and `keys` [B, heads, N, d]. A differential layer has these in adjacent pairs,
    so that heads = 2·H.
    """

    first: Tensor
    second: Tensor | None
    lam: Tensor | None
    queries: Tensor | None = None
    keys: Tensor | None = None

    @cached_property
    def combined(self) -> Tensor:
        """The map that multiplies V: A, or A1 − λ·A2. Computed once, so that its gradient can be taken."""
        if self.second is None or self.lam is None:
            return self.first
        return self.first - self.lam * self.second


class SelfAttention(nn.Module, ABC):
    """The base of all layers. The operator runs on `backend`. Training drops the share `attn_drop` of each map, and
    `proj_drop` of the output."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Any = None,  # timm passes its block norm to every attention layer; the head norm is always RMS
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        **unsupported: Any,
    ) -> None:
        super().__init__()
        used = [name for name, value in unsupported.items() if value]
        if used:
            raise InputError(f"{type(self).__name__} has no {', '.join(used)}: leave it out")
        if dim % num_heads:
            raise InputError(f"width {dim} is not a multiple of heads {num_heads}")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.backend = "auto"
        self.attn_drop = attn_drop
        self.proj_drop = proj_drop
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)

    @abstractmethod
    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        """Map x [B, N, C] to the heads' outputs side by side, [B, N, C], before the output projection."""

    @abstractmethod
    def attend_through_maps(
        self, x: Tensor, causal: bool, detach_norm: bool = False
    ) -> tuple[Tensor, AttentionMaps]:
        """Return the output of `_attend` in evaluation, [B, N, C], from the plain formulas, and the maps. The output
        depends on the maps only through `maps.combined` [B, H, N, N]. With `detach_norm`, gradients treat the
        denominator of a head norm as a constant."""

    def _subtract_maps(
        self, q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool
    ) -> tuple[Tensor, AttentionMaps]:
        """Return (A1 − λ·A2)·V [B, H, N, e] from the plain formulas, and the maps; inputs as in
        `diffclip.differential_attention`."""
        if self.backend == "triton":
            say_once('attention backend "triton" never makes the maps: they come from "eager"')
        head_maps = eager.softmax_maps(q, k, causal)
        maps = AttentionMaps(head_maps[:, 0::2], head_maps[:, 1::2], per_head(lam, v), q, k)
        return maps.combined.to(v.dtype) @ v, maps

    def own_values(self, x: Tensor) -> Tensor:
        """Return the heads' outputs side by side, [B, N, C], as if each token of x [B, N, C] attended only to itself:
        the identity replaces A, or A1 − λ·A2. Head norm, factor and gate stay, because the output projection expects
        them."""
        values: Tensor = self.qkv(x).chunk(3, dim=-1)[2]
        return values

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x [B, N, C] to [B, N, C].

        Raises:
            InputError: a mask is given; the towers only know full and causal attention.
        """
        if attn_mask is not None:
            raise InputError("attn_mask is not supported: attention is full, or causal with is_causal=True")
        out: Tensor = self.out_proj(self._attend(x, is_causal))
        return F.dropout(out, self.proj_drop) if self.training and self.proj_drop else out


class SoftmaxAttention(SelfAttention):
    """Multi-head attention as in the plain CLIP: `num_heads` maps."""

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        q, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads)
        dropout_p = self.attn_drop if self.training else 0.0
        out = softmax_attention(q, k, v, causal=causal, backend=self.backend, dropout_p=dropout_p)
        return out.transpose(1, 2).flatten(2)

    def attend_through_maps(
        self, x: Tensor, causal: bool, detach_norm: bool = False
    ) -> tuple[Tensor, AttentionMaps]:
        q, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads)
        maps = AttentionMaps(eager.softmax_maps(q, k, causal), None, None, q, k)
        return (maps.combined.to(v.dtype) @ v).transpose(1, 2).flatten(2), maps


class LambdaAttention(SelfAttention):
    """Attention whose layer has one λ = exp(λ_q1·λ_k1) − exp(λ_q2·λ_k2) + λ_init, shared by its heads (paper Section
    3.2, after Differential Transformer, arXiv:2410.05258, Section 2.1).

    With `lambda_fixed`, λ is that number, and the layer has no vectors from which to learn λ.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        device: torch.device | None = None,
        lambda_init: float = 0.8,
        lambda_fixed: float | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(dim, num_heads, device=device, **rest)
        self.lambda_init = lambda_init
        self.lambda_fixed = lambda_fixed
        if lambda_fixed is not None:
            return
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(
                nn.init.normal_(torch.empty(self.head_dim, device=device, dtype=torch.float32), std=0.1)
            )
            for _ in range(4)
        )

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> LambdaAttention:
        """Move or cast the layer; λ's vectors move along but stay float32, as in the published code."""

        def vectors() -> dict[str, nn.Parameter]:
            # compare parts of names: a parametrization puts the vectors into submodules
            pairs = self.named_parameters()
            return {
                name: value for name, value in pairs if not set(LAMBDA_VECTORS).isdisjoint(name.split("."))
            }

        before = {name: parameter.data for name, parameter in vectors().items()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, parameter in vectors().items():
            if parameter.dtype != torch.float32:
                parameter.data = before[name].to(parameter.device)
        return self

    def current_lambda(self) -> Tensor:
        """Return the current λ of this layer: 0-dim, float32, with gradients unless it is fixed."""
        if self.lambda_fixed is not None:
            return torch.full((), self.lambda_fixed, dtype=torch.float32, device=self.qkv.weight.device)
        first = torch.exp((self.lambda_q1.float() * self.lambda_k1.float()).sum())
        second = torch.exp((self.lambda_q2.float() * self.lambda_k2.float()).sum())
        return first - second + self.lambda_init


class DifferentialAttention(LambdaAttention):
    """Multi-head differential attention: `num_heads` query heads in pairs, num_heads/2 values of twice the width.

    Each head's output gets an RMS norm if `head_norm` is set, then the factor (1 − λ_init) if `factor` is set.
    Source: paper Section 3.2 and the published code (github.com/hammoudhasan/DiffCLIP).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        device: torch.device | None = None,
        head_norm: bool = True,
        factor: bool = True,
        **rest: Any,
    ) -> None:
        super().__init__(dim, num_heads, device=device, **rest)
        if num_heads % 2:
            raise InputError(
                f"heads {num_heads} is odd: differential attention pairs heads, use an even number"
            )
        self.head_norm = head_norm
        self.factor = factor
        if head_norm:
            # only its gain is used: the attention operators apply the norm
            self.diff_norm = nn.RMSNorm(2 * self.head_dim, eps=HEAD_NORM_EPS, device=device)

    @property
    def norm_weight(self) -> Tensor | None:
        """The gain of the head norm, [2·head_dim]; None without one."""
        return self.diff_norm.weight if self.head_norm else None

    @property
    def out_scale(self) -> float:
        """The factor after the head norm: 1 − λ_init, or 1 without `factor`."""
        return 1.0 - self.lambda_init if self.factor else 1.0

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        return differential_attention_packed(
            self.qkv(x),
            self.num_heads,
            self.current_lambda(),
            causal=causal,
            backend=self.backend,
            norm_weight=self.norm_weight,
            norm_eps=HEAD_NORM_EPS,
            out_scale=self.out_scale,
            dropout_p=self.attn_drop if self.training else 0.0,
        )

    def attend_through_maps(
        self, x: Tensor, causal: bool, detach_norm: bool = False
    ) -> tuple[Tensor, AttentionMaps]:
        q, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads // 2)
        heads, maps = self._subtract_maps(q, k, v, self.current_lambda(), causal)
        return self._finish(heads, maps.first.dtype, detach_norm), maps

    def own_values(self, x: Tensor) -> Tensor:
        v = by_head(super().own_values(x), self.num_heads // 2)
        return self._finish(v, accumulation_dtype(v.dtype))

    def _finish(self, heads: Tensor, dtype: torch.dtype, detach_norm: bool = False) -> Tensor:
        """Apply norm and factor to heads [B, H, N, e], in `dtype`; return [B, N, C], side by side, in their dtype."""
        outputs, weight = heads.to(dtype), self.norm_weight
        if detach_norm and weight is not None:
            mean_square = outputs.detach().square().mean(-1, keepdim=True)
            outputs, weight = outputs * torch.rsqrt(mean_square + HEAD_NORM_EPS) * weight.to(dtype), None
        outputs = finish_heads(outputs, dtype, weight, HEAD_NORM_EPS, self.out_scale)
        return outputs.to(heads.dtype).transpose(1, 2).flatten(2)


def set_lambda_init(layers: Iterable[SelfAttention], lambda_init: float | Literal["dynamic"]) -> None:
    """Set λ_init of the differential layers of a tower; `layers` are all its layers, in order of depth."""
    for index, layer in enumerate(layers):
        if isinstance(layer, DifferentialAttention):
            layer.lambda_init = lambda_init_of_layer(lambda_init, index)
