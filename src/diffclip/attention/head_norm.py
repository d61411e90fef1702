"""Attention with an RMS norm and a factor after each head, as differential attention has them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from diffclip.attention.heads import by_head, finish_heads
from diffclip.attention.lambdas import accumulation_dtype
from diffclip.attention.module import SelfAttention, StartingValues

HEAD_NORM_EPS = 1e-5


class NormedAttention(SelfAttention):
    """Attention with num_heads/2 value heads of size 2·head_dim.

    Each head's output gets an RMS norm if `head_norm` is set, then the factor (1 − λ_init) if `factor` is set.
    """

    options: ClassVar[frozenset[str]] = frozenset({"lambda_init", "head_norm", "factor"})
    pairs_heads = True

    def __init__(
        self,
        dim: int,
        num_heads: int,
        device: torch.device | None = None,
        lambda_init: float = 0.8,
        head_norm: bool = True,
        factor: bool = True,
        **rest: Any,
    ) -> None:
        super().__init__(dim, num_heads, device=device, **rest)
        self.lambda_init = lambda_init
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

    def own_values(self, x: Tensor) -> Tensor:
        v = by_head(self._values(x), self.num_heads // 2)
        return self._finish(v, accumulation_dtype(v.dtype))

    def _values(self, x: Tensor) -> Tensor:
        """Project x [B, N, C] to values [B, N, C]."""
        return self.qkv(x).chunk(3, dim=-1)[2]

    def _finish(self, heads: Tensor, dtype: torch.dtype, detach_norm: bool = False) -> Tensor:
        outputs, weight = heads.to(dtype), self.norm_weight
        if detach_norm and weight is not None:
            mean_square = outputs.detach().square().mean(-1, keepdim=True)
            outputs, weight = outputs * torch.rsqrt(mean_square + HEAD_NORM_EPS) * weight.to(dtype), None
        outputs = finish_heads(outputs, dtype, weight, HEAD_NORM_EPS, self.out_scale)
        return outputs.to(heads.dtype).transpose(1, 2).flatten(2)


class FewerQueriesAttention(NormedAttention):
    """`NormedAttention` with the queries and keys of some heads only: `part_qkv` in place of `qkv`.

    The rows of `part_qkv` start with the values of the same rows of `qkv` in a layer with all heads.
    """

    def __init__(
        self, dim: int, num_heads: int, qkv_bias: bool = True, device: torch.device | None = None, **rest: Any
    ) -> None:
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, device=device, **rest)
        rows = 2 * len(self.kept_heads(num_heads)) * self.head_dim + dim
        self.part_qkv = nn.Linear(dim, rows, bias=qkv_bias, device=device, dtype=self.qkv.weight.dtype)
        del self.qkv

    @staticmethod
    @abstractmethod
    def kept_heads(heads: int) -> list[int]:
        """Return the heads of `heads` whose queries and keys the layer has, in their order in `part_qkv`."""

    @classmethod
    def starting_value(cls, name: str, shape: torch.Size, start: StartingValues) -> Tensor | None:
        if not name.startswith("part_qkv."):
            return super().starting_value(name, shape, start)
        size = start.width // start.heads
        whole = start(name.removeprefix("part_"), (3 * start.width, *shape[1:]))
        q, k, v = whole.view(3, start.heads, size, *shape[1:])
        kept = cls.kept_heads(start.heads)
        return torch.cat([q[kept], k[kept], v]).flatten(0, 1)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x [B, N, C] to queries and keys of the kept heads [B, kept, N, d], and values [B, H, N, 2·d]."""
        dim = self.num_heads * self.head_dim
        projected: Tensor = self.part_qkv(x)
        kept = (projected.shape[-1] - dim) // 2
        q, k, v = torch.split(projected, [kept, kept, dim], dim=-1)
        heads = kept // self.head_dim
        return by_head(q, heads), by_head(k, heads), by_head(v, self.num_heads // 2)

    def _values(self, x: Tensor) -> Tensor:
        return self.part_qkv(x)[..., -self.num_heads * self.head_dim :]
