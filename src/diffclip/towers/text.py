"""The text tower: a causal transformer in batch-first layout, with the names of the published checkpoints.

Pre-norm blocks and LayerNorm eps 1e-5, as in SLIP and OpenAI's CLIP; QuickGELU unless the configuration says GELU.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from timm.layers import get_act_layer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from diffclip.config import Differential, TextConfig

TEXT_NORM_EPS = 1e-5


class ResidualAttentionBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), causal."""

    def __init__(self, config: TextConfig, differential: Differential | None) -> None:
        super().__init__()
        hidden = int(config.width * config.mlp_ratio)
        self.attn = config.layer(config.width, config.heads, **config.layer_options(differential))
        self.ln_1 = nn.LayerNorm(config.width, eps=TEXT_NORM_EPS)
        self.mlp = nn.Sequential(
            OrderedDict(
                c_fc=nn.Linear(config.width, hidden),
                gelu=get_act_layer(config.activation)(),
                c_proj=nn.Linear(hidden, config.width),
            )
        )
        self.ln_2 = nn.LayerNorm(config.width, eps=TEXT_NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, width] to [B, N, width]."""
        x = x + self.attn(self.ln_1(x), is_causal=True)
        return x + self.mlp(self.ln_2(x))


class TextTransformer(nn.Module):
    """The stack of blocks; embeddings and the final norm belong to the model, where the checkpoints keep them."""

    def __init__(self, config: TextConfig, differential: Differential | None = None) -> None:
        super().__init__()
        blocks = (ResidualAttentionBlock(config, differential) for _ in range(config.layers))
        self.resblocks = nn.ModuleList(blocks)
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, width] to [B, N, width]."""
        for block in self.resblocks:
            recompute = self.grad_checkpointing and self.training
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        return x
