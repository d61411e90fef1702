"""Our vision towers in timm, from `import diffclip.integrations.timm` on.

    timm.create_model("diff_vit_base_patch16_224", num_classes=10, lambda_init="dynamic")

Weights: `pretrained=True, pretrained_cfg_overlay={"file": SOURCE}` reads a run folder, a saved folder, a published file
or a checkpoint of open_clip's trainer, with what its configuration says (λ_init, epsilon, statistics of images); the
head is then the projection into the joint space, unless `num_classes` asks for another. timm's own `checkpoint_path=`
takes files too, but reads tensors alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model, resolve_pretrained_cfg
from torch import nn

from diffclip.config import named_config
from diffclip.integrations.timm.tower import DiffVisionTransformer, remember
from diffclip.integrations.timm.weights import checkpoint_filter_fn, read_for_timm, sizes_of

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


def _create(variant: str, pretrained: bool, **kwargs: Any) -> nn.Module:
    sizes = sizes_of(named_config(f"DiffCLIP-{SIZES[variant]}").vision)
    overlay = dict(kwargs.pop("pretrained_cfg_overlay", None) or {})
    told: dict[str, Any] = {}
    if pretrained:
        resolved = resolve_pretrained_cfg(variant, kwargs.get("pretrained_cfg"), overlay)
        if resolved.file and not (resolved.source or resolved.state_dict):
            of_file, told = read_for_timm(resolved.file, sizes | kwargs, SIZES)
            overlay |= of_file
    model: Any = build_model_with_cfg(
        DiffVisionTransformer,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        pretrained_cfg_overlay=overlay,
        feature_cfg={"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"},
        **(sizes | told | kwargs),
    )
    model.pretrained_cfg.pop("state_dict", None)  # the weights are in the model now
    remember(model, **told)
    return model  # type: ignore[no-any-return]  # also timm's wrapper for `features_only`


def _entry_point(name: str) -> Callable[..., nn.Module]:
    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return _create(name, pretrained, **kwargs)

    create.__name__ = create.__qualname__ = name
    create.__doc__ = (
        f"The vision tower of DiffCLIP-{SIZES[name]}; for the arguments see `DiffVisionTransformer`."
    )
    return create


for _name in SIZES:
    globals()[_name] = register_model(_entry_point(_name))
