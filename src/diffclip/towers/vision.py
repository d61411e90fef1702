"""The vision tower: timm's `VisionTransformer` with our attention, pooled by the class token.

timm provides patches, resizing of position embeddings, drop path, patch dropout and gradient checkpointing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from timm.layers import LayerNorm
from timm.models.vision_transformer import VisionTransformer
from torch import nn

if TYPE_CHECKING:
    from diffclip.config import Differential, VisionConfig


def build_vision(config: VisionConfig, differential: Differential | None = None) -> VisionTransformer:
    """Build the tower for `config`, whose `norm_eps` must be resolved; it maps images [B, 3, S, S] to [B, width]."""
    tower = VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        embed_dim=config.width,
        depth=config.layers,
        num_heads=config.heads,
        mlp_ratio=config.mlp_ratio,
        num_classes=0,
        global_pool="token",
        drop_path_rate=config.drop_path,
        patch_drop_rate=config.patch_dropout,
        norm_layer=partial(LayerNorm, eps=config.norm_eps),
        attn_layer=config.layer,
        act_layer=config.activation,
        pre_norm=config.pre_norm,
        reg_tokens=config.registers,
    )
    # timm passes only its own arguments to `attn_layer`
    if options := config.layer_options(differential):
        for block in tower.blocks:
            block.attn = config.layer(config.width, config.heads, **options)
    patches = tower.patch_embed.proj
    # timm leaves the bias out of the patch embedding if `pre_norm` is set
    if (patches.bias is not None) != config.patch_bias:
        bias = nn.Parameter(torch.zeros(patches.out_channels)) if config.patch_bias else None
        patches.register_parameter("bias", bias)
    return tower
