"""A ViT CLIP of open_clip as a plain `CLIP` of ours: the same numbers under our names."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from diffclip.convert.assemble import activation_of, assemble, check_outputs, refuse
from diffclip.errors import InputError
from diffclip.model import CLIP
from diffclip.towers.text import TEXT_NORM_EPS


def from_open_clip(model: nn.Module, source: str = "the model") -> CLIP:
    """`model`, made by `open_clip.create_model`, as one of ours, in float32 on the CPU.

    Raises:
        InputError: it has a part that ours lacks (another tower, pooling, activation, LayerScale …), which is named.
    """
    visual, text = _visual(model, source), _text(model, source)
    vision_blocks, text_blocks = (_blocks(tower.transformer, source) for tower in (visual, text))
    state: dict[str, Tensor] = {"logit_scale": model.get_parameter("logit_scale")}
    if getattr(model, "logit_bias", None) is not None:
        state["logit_bias"] = model.get_parameter("logit_bias")
    width = visual.conv1.out_channels
    state |= {
        "visual.cls_token": visual.class_embedding.view(1, 1, width),
        "visual.pos_embed": visual.positional_embedding[None],
        "visual.patch_embed.proj.weight": visual.conv1.weight,
        "image_projection": visual.proj,
        "token_embedding.weight": text.token_embedding.weight,
        "positional_embedding": text.positional_embedding,
        "text_projection": text.text_projection,
        **_norm("visual.norm", visual.ln_post),
        **_norm("ln_final", text.ln_final),
    }
    if visual.conv1.bias is not None:
        state["visual.patch_embed.proj.bias"] = visual.conv1.bias
    pre_norm = isinstance(visual.ln_pre, nn.LayerNorm)
    if pre_norm:
        state |= _norm("visual.norm_pre", visual.ln_pre)
    for i, block in enumerate(vision_blocks):
        state |= _block(f"visual.blocks.{i}", block, ("norm1", "norm2", "mlp.fc1", "mlp.fc2"))
    for i, block in enumerate(text_blocks):
        state |= _block(f"transformer.resblocks.{i}", block, ("ln_1", "ln_2", "mlp.c_fc", "mlp.c_proj"))
    fields: dict[str, Any] = {
        "embed_dim": visual.proj.shape[1],
        "logit_bias": "logit_bias" in state,
        "preprocess": _preprocess(model, source),
        "vision": _sizes(vision_blocks, source)
        | {
            "image_size": visual.image_size[0],
            "patch_size": visual.patch_size[0],
            "norm_eps": visual.ln_post.eps,
            "pre_norm": pre_norm,
            "patch_bias": visual.conv1.bias is not None,
        },
        "text": _sizes(text_blocks, source)
        | {
            "context_length": text.positional_embedding.shape[0],
            "vocab_size": text.token_embedding.num_embeddings,
        },
    }
    converted = assemble(fields, state, source)
    encode_image: Any = model.encode_image
    encode_text: Any = model.encode_text
    was_training = model.training
    model.eval()
    try:
        check_outputs(converted, encode_image, encode_text, source)
    finally:
        model.train(was_training)
    return converted


def _preprocess(model: nn.Module, source: str) -> dict[str, Any]:
    """Fields of our `PreprocessConfig` from what open_clip keeps with the model, else from its defaults."""
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
    if visual.pool_type != "tok" or visual.attn_pool is not None:
        raise refuse(
            source, f"the pooling {visual.pool_type if visual.attn_pool is None else 'by attention'}"
        )
    if visual.proj is None:
        raise refuse(source, "a vision tower without a projection")
    if len(set(visual.image_size)) > 1 or len(set(visual.patch_size)) > 1:
        raise refuse(source, f"pictures of {visual.image_size} in patches of {visual.patch_size}")
    return visual


def _text(model: nn.Module, source: str) -> Any:
    text: Any = getattr(model, "text", model)
    if not hasattr(text, "transformer") or not hasattr(text, "ln_final"):
        raise refuse(source, f"the text tower {type(text).__name__}")
    pooling = getattr(text, "text_pool_type", None) or text.pool_type
    if pooling != "argmax" or getattr(text, "cls_emb", None) is not None:
        raise refuse(source, f"the text pooling {pooling}")
    if not isinstance(text.text_projection, Tensor):
        raise refuse(source, "no plain text projection")
    if text.attn_mask is None:
        raise refuse(source, "a text tower without the causal mask")
    if text.ln_final.eps != TEXT_NORM_EPS:
        raise refuse(source, f"a text tower whose norms have the epsilon {text.ln_final.eps}")
    return text


def _blocks(transformer: Any, source: str) -> list[Any]:
    blocks = list(transformer.resblocks)
    for block in blocks:
        if not isinstance(block.attn, nn.MultiheadAttention):
            raise refuse(source, f"the attention {type(block.attn).__name__}")
        for name in ("ls_1", "ls_2"):
            if not isinstance(getattr(block, name, nn.Identity()), nn.Identity):
                raise refuse(source, "LayerScale")
        activation_of(block.mlp.gelu, source)
    return blocks


def _sizes(blocks: list[Any], source: str) -> dict[str, Any]:
    first = blocks[0]
    return {
        "width": first.attn.embed_dim,
        "layers": len(blocks),
        "heads": first.attn.num_heads,
        "mlp_ratio": first.mlp.c_fc.out_features / first.attn.embed_dim,
        "activation": activation_of(first.mlp.gelu, source),
    }


def _block(prefix: str, block: Any, names: tuple[str, str, str, str]) -> dict[str, Tensor]:
    parts = (block.ln_1, block.ln_2, block.mlp.c_fc, block.mlp.c_proj)
    state = {
        f"{prefix}.attn.qkv.weight": block.attn.in_proj_weight,
        f"{prefix}.attn.qkv.bias": block.attn.in_proj_bias,
        f"{prefix}.attn.out_proj.weight": block.attn.out_proj.weight,
        f"{prefix}.attn.out_proj.bias": block.attn.out_proj.bias,
    }
    for name, part in zip(names, parts, strict=True):
        state |= _norm(f"{prefix}.{name}", part)
    return state


def _norm(name: str, part: Any) -> dict[str, Tensor]:
    return {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
