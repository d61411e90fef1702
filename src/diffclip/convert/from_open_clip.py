"""Convert a ViT CLIP of open_clip to our plain `CLIP` with the same outputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from diffclip.config import mlp_ratio
from diffclip.convert.assemble import activation_of, assemble, check_outputs, refuse
from diffclip.errors import InputError
from diffclip.model import CLIP
from diffclip.towers.text import TEXT_NORM_EPS

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
_PLAIN_ATTENTION = {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}


def from_open_clip(model: nn.Module, source: str = "the model") -> CLIP:
    """Convert a model of `open_clip.create_model` to ours, in float32 on the CPU.

    Raises:
        InputError: it has a part that ours lacks (another tower, pooling, activation, LayerScale …), which is named.
    """
    visual, text = _visual(model, source), _text(model, source)
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

    def pooled(encode: Any) -> Any:
        """With `output_tokens` the encoders return the tokens too."""
        return lambda inputs: out[0] if isinstance(out := encode(inputs), tuple) else out

    their: Any = model
    check_outputs(converted, model, pooled(their.encode_image), pooled(their.encode_text), source)
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


def _visual(model: nn.Module, source: str) -> Any:
    visual: Any = getattr(model, "visual", None)
    if type(visual).__name__ != "VisionTransformer" or not hasattr(visual, "class_embedding"):
        raise refuse(source, f"the vision tower {type(visual).__name__}")
    if visual.attn_pool is not None:
        raise refuse(source, "a vision tower that pools by attention")
    if visual.pool_type != "tok":
        raise refuse(source, f"a vision tower with the pooling {visual.pool_type}")
    if visual.proj is None:
        raise refuse(source, "a vision tower without a projection")
    if len(set(visual.image_size)) > 1 or len(set(visual.patch_size)) > 1:
        raise refuse(source, f"images of {visual.image_size} in patches of {visual.patch_size}")
    return visual


def _text(model: nn.Module, source: str) -> Any:
    text: Any = getattr(model, "text", model)
    if not hasattr(text, "transformer") or not hasattr(text, "ln_final"):
        raise refuse(source, f"the text tower {type(text).__name__}")
    if getattr(text, "cls_emb", None) is not None:
        raise refuse(source, "a text tower that pools by a class token")
    pooling = getattr(text, "text_pool_type", None) or text.pool_type
    if pooling != "argmax":
        raise refuse(source, f"the text pooling {pooling}")
    if not isinstance(text.text_projection, Tensor):
        raise refuse(source, "no plain text projection")
    if text.attn_mask is None:
        raise refuse(source, "a text tower without the causal mask")
    if text.ln_final.eps != TEXT_NORM_EPS:
        raise refuse(source, f"a text tower whose norms have the epsilon {text.ln_final.eps}")
    return text


def _sizes(transformer: Any, source: str) -> dict[str, Any]:
    """Return the fields that the configurations of both towers share.

    Raises:
        InputError: a block has a part that ours lacks.
    """
    blocks = list(transformer.resblocks)
    for block in blocks:
        # options of its own attention, which 4.2 has in every model, bring parameters
        others = {name for name, _ in block.attn.named_parameters()} ^ _PLAIN_ATTENTION
        if others:
            raise refuse(source, f"the attention {type(block.attn).__name__} with another {min(others)}")
        if not all(isinstance(getattr(block, name, nn.Identity()), nn.Identity) for name in ("ls_1", "ls_2")):
            raise refuse(source, "LayerScale")
        activation_of(block.mlp.gelu, source)
    first, width = blocks[0], blocks[0].attn.out_proj.out_features
    return {
        "width": width,
        "layers": len(blocks),
        "heads": first.attn.num_heads,
        "mlp_ratio": mlp_ratio(width, first.mlp.c_fc.out_features),
        "activation": activation_of(first.mlp.gelu, source),
    }
