"""Convert a ViT CLIP of open_clip to our plain `CLIP` with the same outputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from diffclip.config import mlp_ratio
from diffclip.convert.assemble import activation_of, assemble, check_outputs, refuse
from diffclip.errors import InputError
from diffclip.model import CLIP

_NAMES = (
    (r"^text\.", ""),
    (r"^visual\.class_embedding$", "visual.cls_token"),
    (r"^visual\.positional_embedding$", "visual.pos_embed"),
    (r"^visual\.proj$", "image_projection"),
    (r"^visual\.conv1\.", "visual.patch_embed.proj."),
    (r"^visual\.ln_pre\.", "visual.norm_pre."),
    (r"^visual\.ln_post\.", "visual.norm."),
    (r"^visual\.transformer\.resblocks\.(\d+)\.ln_", r"visual.blocks.\1.norm"),
    (r"^visual\.transformer\.resblocks\.", "visual.blocks."),
    (r"^(visual\.blocks\.\d+\.mlp)\.c_fc\.", r"\1.fc1."),
    (r"^(visual\.blocks\.\d+\.mlp)\.c_proj\.", r"\1.fc2."),
)


def from_open_clip(model: nn.Module, source: str = "the model") -> CLIP:
    """Convert a model of `open_clip.create_model` to ours, in float32 on the CPU.

    Raises:
        InputError: it has a part that ours lacks (another tower, pooling, activation, LayerScale …).
    """
    their: Any = model
    visual: Any = getattr(model, "visual", None)
    text: Any = getattr(model, "text", model)
    if getattr(visual, "proj", None) is None or not isinstance(
        getattr(text, "text_projection", None), Tensor
    ):
        raise refuse(source, f"the towers {type(visual).__name__} and {type(text).__name__}")
    fields: dict[str, Any] = {
        "embed_dim": visual.proj.shape[1],
        "logit_bias": getattr(model, "logit_bias", None) is not None,
        "preprocess": _preprocess(model, source),
        "vision": _sizes(visual.transformer, source)
        | {
            "image_size": visual.image_size[0],
            "patch_size": visual.patch_size[0],
            "norm_eps": visual.ln_post.eps,
            "pre_norm": isinstance(visual.ln_pre, nn.LayerNorm),
            "patch_bias": visual.conv1.bias is not None,
        },
        "text": _sizes(text.transformer, source)
        | {
            "context_length": text.positional_embedding.shape[0],
            "vocab_size": text.token_embedding.num_embeddings,
        },
    }
    converted = assemble(fields, dict(model.named_parameters()), _NAMES, source)

    def image_features(images: Tensor) -> Any:
        found = their.encode_image(images)
        return found[0] if isinstance(found, tuple) else found  # the tokens too, with `output_tokens`

    check_outputs(converted, model, image_features, their.encode_text, source)
    return converted


def _preprocess(model: nn.Module, source: str) -> dict[str, Any]:
    """Return fields of `PreprocessConfig`: those that open_clip keeps with the model, or its defaults."""
    from open_clip import get_model_preprocess_cfg
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    prepared = merge_preprocess_dict(PreprocessCfg(), get_model_preprocess_cfg(model))
    if prepared["resize_mode"] == "longest":
        raise InputError(
            f"{source} takes images with borders (resize_mode longest), which cannot be converted: "
            "choose weights with resize_mode shortest or squash"
        )
    return {
        "mean": prepared["mean"],
        "std": prepared["std"],
        # "random" is of its training alone: its evaluation then scales bicubically
        "interpolation": "bilinear" if prepared["interpolation"] == "bilinear" else "bicubic",
        "resize": "squash" if prepared["resize_mode"] == "squash" else None,
    }


def _sizes(transformer: Any, source: str) -> dict[str, Any]:
    """Return the fields that the configurations of both towers share."""
    first = transformer.resblocks[0]
    width = first.attn.out_proj.out_features
    return {
        "width": width,
        "layers": len(transformer.resblocks),
        "heads": first.attn.num_heads,
        "mlp_ratio": mlp_ratio(width, first.mlp.c_fc.out_features),
        "activation": activation_of(first.mlp.gelu, source),
    }
