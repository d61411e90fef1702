"""The vision tower: timm's `VisionTransformer` with our attention, pooled by the class token.

timm provides patches, resizing of position embeddings, drop path, patch dropout and gradient checkpointing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import timm.layers
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

if TYPE_CHECKING:
    from diffclip.config import Differential, VisionConfig


class PatchEmbed(timm.layers.PatchEmbed):  # type: ignore[misc]  # timm has no types
    """timm's patch embedding; on a CPU the convolution is one matrix product over patches, with the same weights.

    The gradient of a convolution in bfloat16 takes torch up to twenty times as long as that of the product. On other
    devices neither was measured, so they keep the convolution.
    """

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, S, S] to [B, patches, width]."""
        if images.device.type != "cpu" or images.shape[2:] != self.img_size:
            return super().forward(images)  # which refuses another size
        (rows, columns), (height, width) = self.grid_size, self.patch_size
        pixels = images.reshape(-1, images.shape[1], rows, height, columns, width)
        pixels = pixels.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # [B, patches, 3·p·p]
        return F.linear(pixels, self.proj.weight.flatten(1), self.proj.bias)


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
        embed_layer=PatchEmbed,
        norm_layer=partial(timm.layers.LayerNorm, eps=config.norm_eps),
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
