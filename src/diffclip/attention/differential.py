"""Multi-head differential attention (paper Section 3.2; published code: github.com/hammoudhasan/DiffCLIP).

Apart from `qkv`, the parameters have the published code's names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from diffclip.attention.dispatch import differential_attention
from diffclip.attention.head_norm import HEAD_NORM_EPS, NormedAttention
from diffclip.attention.heads import split_heads
from diffclip.attention.module import PublishedNames, StartingValues
from diffclip.attention.paired import PairedAttention
from diffclip.attention.registry import register_attention

LAMBDA_VECTORS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
_SPLIT = {"qkv.": ("q_proj.", "k_proj.", "v_proj.")}


class LambdaAttention(PairedAttention):
    """Attention whose layer has one λ = exp(λ_q1·λ_k1) − exp(λ_q2·λ_k2) + λ_init, shared by its heads (paper Section
    3.2, after Differential Transformer, arXiv:2410.05258, Section 2.1)."""

    def add_lambda_vectors(self, device: torch.device | None) -> None:
        """Make the four vectors from which λ is computed."""
        vectors = [torch.empty(self.head_dim, device=device, dtype=torch.float32) for _ in range(4)]
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(nn.init.normal_(vector, std=0.1)) for vector in vectors
        )

    @classmethod
    def starting_value(cls, name: str, shape: torch.Size, start: StartingValues) -> Tensor | None:
        if name in LAMBDA_VECTORS:
            return start(name, shape, std=0.1)
        return super().starting_value(name, shape, start)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> LambdaAttention:
        """Move or cast the layer; λ's vectors move along but stay float32, as in the published code."""

        def vectors() -> dict[str, nn.Parameter]:
            # compare parts of names: a parametrization puts the vectors into submodules
            names = set(LAMBDA_VECTORS)
            return {name: value for name, value in self.named_parameters() if names & set(name.split("."))}

        before = {name: parameter.data for name, parameter in vectors().items()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, parameter in vectors().items():
            if parameter.dtype != torch.float32:
                parameter.data = before[name].to(parameter.device)
        return self

    def current_lambda(self) -> Tensor:
        """Return the current λ of this layer: 0-dim, float32, with gradients."""
        first = torch.exp((self.lambda_q1.float() * self.lambda_k1.float()).sum())
        second = torch.exp((self.lambda_q2.float() * self.lambda_k2.float()).sum())
        return first - second + self.lambda_init


@register_attention("differential")
class DifferentialAttention(LambdaAttention, NormedAttention):
    """Multi-head differential attention: `num_heads` query heads in pairs, num_heads/2 values of twice the width."""

    published_names: ClassVar[PublishedNames | None] = {"vision": _SPLIT, "text": _SPLIT}
    recreated_when_published = True

    def __init__(self, dim: int, num_heads: int, device: torch.device | None = None, **rest: Any) -> None:
        super().__init__(dim, num_heads, device=device, **rest)
        self.add_lambda_vectors(device)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return *split_heads(self.qkv(x), self.num_heads, self.num_heads // 2), self.current_lambda()

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        out = differential_attention(
            *self.project(x),
            causal=causal,
            backend=self.backend,
            norm_weight=self.norm_weight,
            norm_eps=HEAD_NORM_EPS,
            out_scale=self.out_scale,
        )
        return out.transpose(1, 2).flatten(2)
