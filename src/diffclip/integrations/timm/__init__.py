"""Our vision towers in timm, from `import diffclip.integrations.timm` on.

    timm.create_model("diff_vit_base_patch16_224", num_classes=10, lambda_init="dynamic")

`from_diffclip` copies the vision tower of a model with its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timm.models import build_model_with_cfg, create_model, generate_default_cfgs, register_model
from torch import nn

from diffclip.attention import settings_of
from diffclip.config import VisionConfig, name_of, named_config
from diffclip.errors import InputError
from diffclip.integrations.timm.tower import DiffVisionTransformer, checkpoint_filter_fn
from diffclip.model import CLIP

SIZES = {
    "diff_vit_tiny_patch16_224": "ViT-Ti-16",
    "diff_vit_small_patch16_224": "ViT-S-16",
    "diff_vit_base_patch32_224": "ViT-B-32",
    "diff_vit_base_patch16_224": "ViT-B-16",
    "diff_vit_large_patch14_224": "ViT-L-14",
    "diff_vit_huge_patch14_224": "ViT-H-14",
}


def _cfg(size: str) -> dict[str, Any]:
    config = named_config(f"DiffCLIP-{size}")
    return {
        "num_classes": 1000,
        "input_size": (3, config.vision.image_size, config.vision.image_size),
        "fixed_input_size": True,
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": config.preprocess.interpolation,
        "mean": config.preprocess.mean,
        "std": config.preprocess.std,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        "license": "apache-2.0",
    }


default_cfgs = generate_default_cfgs({name: _cfg(size) for name, size in SIZES.items()})


def from_diffclip(model: CLIP, **arguments: Any) -> DiffVisionTransformer:
    """Copy the vision tower of `model` to timm, with its attention, λ_init, epsilon, size and statistics.

    Args:
        model: as `diffclip.load` returns it.
        arguments: of `timm.create_model`. Without `num_classes`, and with as many as the projection has outputs, the
            head is the projection, and outputs are image embeddings; with 0 they are features before the projection;
            any other number gives a fresh head.

    Raises:
        InputError: its attention lacks a part that all layers here have.
    """
    config, vision = model.config, model.config.vision
    if settings_of(vision.attention, config.differential):
        raise InputError(
            f"{name_of(config)} lacks a part of differential attention that our towers in timm all have: use "
            "diffclip.load(…)[0].visual"
        )
    if vision.pre_norm and vision.patch_bias:
        raise InputError(f"{name_of(config)} has a norm after patches with a bias, which timm's towers lack")
    resize = config.preprocess.resize
    overlay = {
        "state_dict": {
            name: value.detach().clone()
            for name, value in model.state_dict().items()
            if name.startswith("visual.") or name == "image_projection"
        },
        "num_classes": config.embed_dim,
        "input_size": (3, vision.image_size, vision.image_size),
        # timm takes the whole part of size / crop_pct, which rounding may leave just below `resize`
        "crop_pct": vision.image_size / (resize + 1e-3) if isinstance(resize, int) else 1.0,
        "crop_mode": "squash" if resize == "squash" else "center",
        **config.preprocess.model_dump(include={"mean", "std", "interpolation"}),
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
    name = next(
        (name for name, size in SIZES.items() if name_of(config).endswith(f"-{size}")),
        "diff_vit_base_patch16_224",
    )
    made: Any = create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **(facts | arguments))
    made.pretrained_cfg.pop("state_dict", None)  # the weights are in the model now
    return made.train(model.training)  # type: ignore[no-any-return]


def _sizes(vision: VisionConfig) -> dict[str, Any]:
    """The sizes of a tower in timm's words."""
    return {
        "patch_size": vision.patch_size,
        "embed_dim": vision.width,
        "depth": vision.layers,
        "num_heads": vision.heads,
        "mlp_ratio": vision.mlp_ratio,
    }


def _entry_point(name: str) -> Callable[..., nn.Module]:
    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        made: nn.Module = build_model_with_cfg(
            DiffVisionTransformer,
            name,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg={"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"},
            **(_sizes(named_config(f"DiffCLIP-{SIZES[name]}").vision) | kwargs),
        )
        return made

    create.__name__ = create.__qualname__ = name
    create.__doc__ = (
        f"The vision tower of DiffCLIP-{SIZES[name]}; for the arguments see `DiffVisionTransformer`."
    )
    return create


for _name in SIZES:
    globals()[_name] = register_model(_entry_point(_name))
