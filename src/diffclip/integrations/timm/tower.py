"""timm's `VisionTransformer` with our attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from timm.layers import LayerNorm, register_notrace_module
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from diffclip.attention import (
    ATTENTION_LAYERS,
    AddedDifferentialAttention,
    DifferentialAttention,
    LambdaAttention,
    SelfAttention,
)
from diffclip.attention.module import LAMBDA_VECTORS
from diffclip.config import lambda_init_of_layer
from diffclip.errors import InputError, unknown
from diffclip.integrations.timm.weights import checkpoint_filter_fn


class _WithDropout(SelfAttention):
    """Adds timm's `proj_drop` to a layer of ours."""

    def __init__(self, dim: int, num_heads: int, proj_drop: float = 0.0, **rest: Any) -> None:
        super().__init__(dim, num_heads, **rest)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        out: Tensor = self.proj_drop(super().forward(x, attn_mask, is_causal))
        return out


_LAYERS = {kind: type(layer.__name__, (_WithDropout, layer), {}) for kind, layer in ATTENTION_LAYERS.items()}
for _layer in _LAYERS.values():
    register_notrace_module(_layer)  # a leaf for torch.fx: it looks at its input's shape and device


class DiffVisionTransformer(VisionTransformer):  # type: ignore[misc]  # timm has no types
    """timm's `VisionTransformer`, with all its arguments and methods, and our attention.

    Args:
        args: timm's.
        attention: of every layer, a key of `diffclip.attention.ATTENTION_LAYERS`.
        lambda_init: λ_init of every layer, or "dynamic", which grows with depth; of "differential" alone.
        norm_eps: of the LayerNorms.
        rest: timm's.

    Raises:
        InputError: unknown attention or λ_init, or an odd number of heads.
    """

    def __init__(
        self,
        *args: Any,
        attention: str = "differential",
        lambda_init: float | Literal["dynamic"] = 0.8,
        norm_eps: float = 1e-6,
        **rest: Any,
    ) -> None:
        if attention not in _LAYERS:
            raise unknown("attention", attention, _LAYERS)
        if isinstance(lambda_init, str) and lambda_init != "dynamic":
            raise InputError(f'lambda_init {lambda_init!r} is neither a number nor "dynamic"')
        rest.setdefault("norm_layer", partial(LayerNorm, eps=norm_eps))
        super().__init__(*args, attn_layer=_LAYERS[attention], **rest)
        for index, block in enumerate(self.blocks):
            if isinstance(block.attn, DifferentialAttention):
                block.attn.lambda_init = lambda_init_of_layer(lambda_init, index)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """timm's start in `mode`, and ours for λ and the gain of the head norm, which timm does not know."""
        super().init_weights(mode, needs_reset)
        for block in self.blocks:
            if isinstance(block.attn, LambdaAttention):
                q1, k1, q2, k2 = (getattr(block.attn, name) for name in LAMBDA_VECTORS)
                for vector in (q1, k1, q2, k2):
                    nn.init.normal_(vector, std=0.1)
                if isinstance(block.attn, AddedDifferentialAttention):  # both products are equal: λ is 0
                    q2.data.copy_(q1.data)
                    k2.data.copy_(k1.data)
            if isinstance(block.attn, DifferentialAttention):
                nn.init.ones_(block.attn.diff_norm.weight)

    def fix_init_weight(self) -> None:
        """Scale what each layer adds by its depth, as timm does with `fix_init`."""
        for index, block in enumerate(self.blocks):
            for linear in (block.attn.out_proj, block.mlp.fc2):
                linear.weight.data.div_(math.sqrt(2.0 * (index + 1)))

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """torch's, which also takes the weights of a whole CLIP of ours: timm's `checkpoint_path=` comes here."""
        if any(name.startswith(("visual.", "module.visual.")) for name in state_dict):
            state_dict = checkpoint_filter_fn(state_dict, self)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def set_norm_eps(self, eps: float) -> None:
        """Use `eps` in every LayerNorm, here and wherever timm saves and loads this model."""
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = eps
        remember(self, norm_eps=eps)


def remember(model: nn.Module, **arguments: Any) -> None:
    """Have timm save `arguments` with the model; it hands them to the entry point when it loads that."""
    held: Any = model
    held._model_args = getattr(model, "_model_args", {}) | arguments
