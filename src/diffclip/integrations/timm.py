"""Our vision towers in timm; `import diffclip.integrations.timm` registers them.

    timm.create_model("diff_vit_base_patch16_224", num_classes=10, lambda_init="dynamic")

`from_diffclip` copies the vision tower of a model with its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import torch
from timm.layers import LayerNorm, register_notrace_module
from timm.models import build_model_with_cfg, create_model, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from diffclip.attention import ATTENTION_LAYERS, SelfAttention, attention_layer
from diffclip.attention.module import set_lambda_init
from diffclip.config import PreprocessConfig, VisionConfig, name_of, named_config
from diffclip.errors import InputError
from diffclip.model import CLIP

SIZES = {
    "diff_vit_tiny_patch16_224": "ViT-Ti-16",
    "diff_vit_small_patch16_224": "ViT-S-16",
    "diff_vit_base_patch32_224": "ViT-B-32",
    "diff_vit_base_patch16_224": "ViT-B-16",
    "diff_vit_large_patch14_224": "ViT-L-14",
    "diff_vit_huge_patch14_224": "ViT-H-14",
}
_PREPROCESS = {"mean", "std", "interpolation"}


for _layer in ATTENTION_LAYERS.values():
    register_notrace_module(_layer)  # one node for torch.fx: its code depends on the input's shape and device


class _TimmStart:
    """The `StartingValues` of a layer in timm: timm's own where its attention has the parameter, else a draw."""

    def __init__(self, layer: SelfAttention) -> None:
        self.heads, self.width = layer.num_heads, layer.num_heads * layer.head_dim
        self.values = {name: value.detach() for name, value in layer.named_parameters()}
        self.drawn: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: Iterable[int], std: float | None = None) -> Tensor:
        if std is None and name in self.values:
            return self.values[name]
        if name not in self.drawn:
            start = torch.zeros(tuple(shape))
            self.drawn[name] = start if name.endswith("bias") else nn.init.normal_(start, std=std or 0.02)
        return self.drawn[name]


class DiffVisionTransformer(VisionTransformer):  # type: ignore[misc]  # timm has no types
    """timm's `VisionTransformer`, with all its arguments and methods, and our attention.

    Args:
        attention: the kind in every layer, a key of `diffclip.attention.ATTENTION_LAYERS`.
        lambda_init: λ_init of every layer, or "dynamic", which grows with depth; kinds without it ignore it.
        norm_eps: epsilon of the LayerNorms.
        rest: timm's own arguments.

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
        if isinstance(lambda_init, str) and lambda_init != "dynamic":
            raise InputError(f'lambda_init {lambda_init!r} is neither a number nor "dynamic"')
        rest.setdefault("norm_layer", partial(LayerNorm, eps=norm_eps))
        super().__init__(*args, attn_layer=attention_layer(attention), **rest)
        set_lambda_init((block.attn for block in self.blocks), lambda_init)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Initialize weights as timm does in `mode`, but parameters with starting values of their own as we do."""
        super().init_weights(mode, needs_reset)
        for block in self.blocks:
            start = _TimmStart(block.attn)
            for name, parameter in block.attn.named_parameters():
                value = block.attn.starting_value(name, parameter.shape, start)
                if value is not None:
                    parameter.data.copy_(value)

    def fix_init_weight(self) -> None:
        """Scale the output projections of each block down by its depth, as timm does with `fix_init`."""
        for index, block in enumerate(self.blocks):
            for linear in (block.attn.out_proj, block.mlp.fc2):
                linear.weight.data.div_(math.sqrt(2.0 * (index + 1)))


def from_diffclip(model: CLIP, **arguments: Any) -> DiffVisionTransformer:
    """Copy the vision tower of `model` to timm, with its attention, λ_init, epsilon, size and statistics.

    Args:
        model: as `diffclip.load` returns it.
        arguments: arguments of `timm.create_model`. If `num_classes` is missing or is the projection's output size, the
            head is the projection and the outputs are image embeddings. With 0 the outputs are features before the
            projection. Any other number gives a fresh head.

    Raises:
        InputError: the tower has parts that timm's towers lack.
    """
    config, vision = model.config, model.config.vision
    if vision.layer_options(config.differential) or (vision.pre_norm and vision.patch_bias):
        raise InputError(
            f"{name_of(config)} lacks a part of differential attention, or has a norm after biased patches: "
            "use diffclip.load(…)[0].visual"
        )
    # timm reads a tower from these names, and takes the projection as its head
    state = {f"visual.trunk.{name}": value.clone() for name, value in model.visual.state_dict().items()}
    state["visual.head.proj.weight"] = model.image_projection.detach().T.clone()
    if not vision.pre_norm:
        state.setdefault("visual.trunk.patch_embed.proj.bias", torch.zeros(vision.width))
    resize = config.preprocess.resize
    overlay = {
        "state_dict": state,
        "num_classes": config.embed_dim,
        "input_size": (3, vision.image_size, vision.image_size),
        # timm rounds size / crop_pct down, and a rounding error could make it fall just below `resize`
        "crop_pct": vision.image_size / (resize + 1e-3) if isinstance(resize, int) else 1.0,
        "crop_mode": "squash" if resize == "squash" else "center",
        **config.preprocess.model_dump(include=_PREPROCESS),
    }
    facts = {
        **_sizes(vision),
        "img_size": vision.image_size,
        "attention": vision.attention,
        "lambda_init": config.lambda_init,
        "norm_eps": vision.norm_eps,
        "pre_norm": vision.pre_norm,
        "reg_tokens": vision.registers,
        "act_layer": vision.activation,
    }
    names = (name for name, size in SIZES.items() if name_of(config).endswith(f"-{size}"))
    name = next(names, "diff_vit_base_patch16_224")
    tower: Any = create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **(facts | arguments))
    tower.pretrained_cfg.pop("state_dict")  # the weights are in the model now
    return tower.train(model.training)


def _sizes(vision: VisionConfig) -> dict[str, Any]:
    """Return the sizes of a tower under timm's names."""
    return {
        "patch_size": vision.patch_size,
        "embed_dim": vision.width,
        "depth": vision.layers,
        "num_heads": vision.heads,
        "mlp_ratio": vision.mlp_ratio,
    }


def _filter(state: dict[str, Tensor], model: DiffVisionTransformer) -> dict[str, Tensor]:
    """Fit weights to `model` as timm does, and rename the final norm if the pooling of `model` comes before it."""
    state = checkpoint_filter_fn(state, model)
    if isinstance(model.norm, nn.Identity) and "norm.weight" in state:
        for part in ("weight", "bias"):
            state[f"fc_norm.{part}"] = state.pop(f"norm.{part}")
    return state


def _entry_point(name: str) -> Callable[..., nn.Module]:
    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return build_model_with_cfg(
            DiffVisionTransformer,
            name,
            pretrained,
            pretrained_filter_fn=_filter,
            feature_cfg={"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"},
            **(_sizes(named_config(f"DiffCLIP-{SIZES[name]}").vision) | kwargs),
        )

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"Make the vision tower of DiffCLIP-{SIZES[name]}; arguments: `DiffVisionTransformer`."
    return create


_CFG = {
    "num_classes": 1000,
    "input_size": (3, 224, 224),
    "fixed_input_size": True,
    "pool_size": None,
    "crop_pct": 1.0,
    "first_conv": "patch_embed.proj",
    "classifier": "head",
    "license": "apache-2.0",
    **PreprocessConfig().model_dump(include=_PREPROCESS),
}
default_cfgs = generate_default_cfgs({name: _CFG for name in SIZES})  # timm looks it up here

for _name in SIZES:
    globals()[_name] = register_model(_entry_point(_name))
