"""The base of all attention layers: self-attention with one fused projection for queries, keys and values.

All layers take timm's constructor arguments, so that each can be the `attn_layer` of timm's `VisionTransformer`. The
text tower uses them too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffclip.attention import eager
from diffclip.attention.lambdas import lambda_init_of_layer, per_head
from diffclip.errors import InputError

PublishedNames = Mapping[str, Mapping[str, tuple[str, ...]]]
"""For each tower, "vision" and "text": a prefix of our names → its prefix in the published code, or several, if the
published code splits the tensor in equal parts."""


class StartingValues(Protocol):
    """Starting values of the parameters of a tower's attention layers; `width` and `heads` are the tower's."""

    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...

    def __call__(self, name: str, shape: Iterable[int], std: float | None = None) -> Tensor:
        """Draw the starting value of a parameter by its name in the layer: normal with `std`, or as the tower's linear
        layers and norms start. Equal seeds, names and shapes give equal values in every model."""


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The maps of one layer, float32 at least. `first` [B, H, N, N]; `second` and `lam` are None in a plain layer.

    The maps were computed from `queries` and `keys` [B, heads, N, d]. A differential layer has these in adjacent pairs,
    so that heads = 2·H. The combined map multiplies `values` [B, H, N, e].
    """

    first: Tensor
    second: Tensor | None = None
    lam: Tensor | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, causal: bool, lam: Tensor | None = None) -> AttentionMaps:
        """Compute the maps from the plain formulas; with `lam` for adjacent pairs of heads, else for each head."""
        maps = eager.softmax_maps(q, k, causal)
        if lam is None:
            return cls(maps, None, None, q, k, v)
        return cls(maps[:, 0::2], maps[:, 1::2], per_head(lam, v), q, k, v)

    @cached_property
    def combined(self) -> Tensor:
        """The map that multiplies V: A, or A1 − λ·A2. Computed once, so that its gradient can be taken."""
        if self.second is None or self.lam is None:
            return self.first
        return self.first - self.lam * self.second


OutputAndMaps = tuple[Tensor, AttentionMaps]


class SelfAttention(nn.Module, ABC):
    """The base of all layers. The operator runs on `backend`. Training drops the share `proj_drop` of the output.

    A layer of one's own defines `_attend`. Its maps can be looked at if it also defines `attend_through_maps`.
    """

    options: ClassVar[frozenset[str]] = frozenset()
    """The constructor's arguments among "lambda_init", "head_norm" and "factor", which a configuration sets."""
    lambda_init: float
    """λ_init of this layer, if it takes one."""
    pairs_heads = False
    """True if two heads share a value head, so that a layer has num_heads/2 maps."""
    is_differential = False
    """True if a second map is subtracted from the first."""
    published_names: ClassVar[PublishedNames | None] = None
    """Names of the parameters in published checkpoints, where they differ from ours; None without published weights."""
    recreated_when_published = False
    """True if the published code makes the tower's blocks anew, with torch's starting values and epsilon."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        proj_drop: float = 0.0,
        norm_layer: Any = None,  # timm passes its block norm to every attention layer; the head norm is always RMS
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        **unsupported: Any,
    ) -> None:
        super().__init__()
        if used := [name for name, value in unsupported.items() if value]:
            raise InputError(f"{type(self).__name__} has no {', '.join(used)}: leave it out")
        self.check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.backend = "auto"
        self.proj_drop = proj_drop
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)

    @classmethod
    def is_built_in(cls) -> bool:
        """Tell whether the layer is of this package. What the layer of a plugin returns is checked."""
        return cls.__module__.startswith("diffclip.")

    @classmethod
    def has_maps(cls) -> bool:
        """Tell whether the layer defines `attend_through_maps`."""
        return cls.attend_through_maps is not SelfAttention.attend_through_maps

    @classmethod
    def check_heads(cls, width: int, heads: int) -> None:
        """Raise `InputError` if the layer cannot have these sizes."""
        if width % heads:
            raise InputError(f"width {width} is not a multiple of heads {heads}")
        if cls.pairs_heads and heads % 2:
            raise InputError(f"heads {heads} is odd: {cls.__name__} pairs heads, use an even number")

    @classmethod
    def starting_value(cls, name: str, shape: torch.Size, start: StartingValues) -> Tensor | None:
        """Return the starting value of the parameter `name` of this layer, such as "qkv.weight". None keeps the value
        from the constructor."""
        return start(name, shape) if name.endswith((".weight", ".bias")) else None

    @abstractmethod
    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        """Map x [B, N, C] to the heads' outputs side by side, [B, N, C], before the output projection."""

    def attend_through_maps(self, x: Tensor, causal: bool, detach_norm: bool = False) -> OutputAndMaps:
        """Return the output of `_attend` in evaluation, [B, N, C], from the plain formulas, and the maps. The output
        depends on the maps only through `maps.combined` [B, H, N, N]. With `detach_norm`, gradients treat the
        denominator of a head norm as a constant. A layer without maps raises `InputError`."""
        raise InputError(
            f"{type(self).__name__} offers no attention maps: define attend_through_maps, or leave out what shows them"
        )

    def _finish(self, heads: Tensor, dtype: torch.dtype, detach_norm: bool = False) -> Tensor:
        """Return heads [B, H, N, e] side by side, [B, N, C]; a layer with a head norm or a factor applies it first, in
        `dtype`."""
        return heads.transpose(1, 2).flatten(2)

    def own_values(self, x: Tensor) -> Tensor:
        """Return the heads' outputs side by side, [B, N, C], as if each token of x [B, N, C] attended only to itself:
        the identity replaces A, or A1 − λ·A2. Head norm, factor and gate stay, because the output projection expects
        them."""
        return self.qkv(x).chunk(3, dim=-1)[2]

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x [B, N, C] to [B, N, C]. A mask raises `ValueError`: the towers only know full and causal attention. Another
        shape from the layer of a plugin raises `InputError`."""
        if attn_mask is not None:
            raise ValueError("attn_mask is not supported: attention is full, or causal with is_causal=True")
        heads = self._attend(x, is_causal)
        if not self.is_built_in() and heads.shape != x.shape:
            shapes = f"x {list(x.shape)} to {list(heads.shape)}"
            raise InputError(f"{type(self).__name__}._attend maps {shapes}: return [B, N, C], as x has")
        out: Tensor = self.out_proj(heads)
        return F.dropout(out, self.proj_drop) if self.training and self.proj_drop else out


def set_lambda_init(layers: Iterable[SelfAttention], lambda_init: float | Literal["dynamic"]) -> None:
    """Set λ_init of the layers of a tower that take it; `layers` are all its layers, in order of depth."""
    for index, layer in enumerate(layers):
        if "lambda_init" in layer.options:
            layer.lambda_init = lambda_init_of_layer(lambda_init, index)
