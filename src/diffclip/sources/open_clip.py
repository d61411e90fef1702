"""Models of open_clip: converted if they are plain ViT CLIPs, else wrapped as they are."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from diffclip.config import mlp_ratio
from diffclip.errors import InputError, explain_errors, unknown_name
from diffclip.model import CLIP
from diffclip.sources.conversion import (
    WAY_OUT,
    activation_of,
    assemble,
    check_outputs,
    refuse,
    silence_warnings,
)
from diffclip.sources.hub import check_reachable
from diffclip.sources.wrapped import LibraryTransform, WrappedModel
from diffclip.tensors import read_tensors

# open_clip's own prefixes, for repositories and folders with a configuration
_SCHEMAS = ("hf-hub", "local-dir")
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


def read_open_clip(name: str, only_clip: bool) -> CLIP | tuple[WrappedModel, LibraryTransform, Any]:
    """Read a model of open_clip; no code that comes with weights is run.

    Args:
        name: `ViT-B-16/laion2b_s34b_b88k` (a file may replace the tag, and `:` the `/`), `hf-hub:OWNER/NAME` or
            `local-dir:FOLDER`.
        only_clip: refuse a model that cannot be converted, with the reason.

    Returns:
        Our `CLIP`, or the model with its preparation and tokenizer.
    """
    import open_clip
    from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

    source = f"open_clip:{name}"
    architecture, weights = (*re.split("[/:]", name, maxsplit=1), "")[:2]
    options: dict[str, Any] = {}
    if architecture in _SCHEMAS:
        if architecture == "hf-hub":
            check_reachable(weights, source, "open_clip_config.json")
        architecture, options["require_pretrained"] = name, True
    else:
        options = _find_weights(architecture, weights, source)
        config = open_clip.get_model_config(architecture)
        parts = (("vision", "timm_model_name", "tower"), ("text", "hf_model_name", "tower"))
        for tower, key, part in (*parts, ("text", "hf_tokenizer_name", "tokenizer")):
            if only_clip and (found := config.get(f"{tower}_cfg", {}).get(key)):  # check before the download
                raise refuse(source, f"the {tower} {part} {found} of another library")
        tag = open_clip.get_pretrained_cfg(architecture, weights)
        repository, _, file = tag.get("hf_hub", "").rpartition("/")
        if repository:
            own = [file, f"{Path(file).stem}.safetensors"]
            check_reachable(repository, source, *(own if file else [HF_WEIGHTS_NAME, HF_SAFE_WEIGHTS_NAME]))
    with silence_warnings(), explain_errors(f"{source} cannot be read", WAY_OUT):
        try:
            model = open_clip.create_model(architecture, weights_only=True, **options)
        except pickle.UnpicklingError as error:
            if Path(weights).is_file():
                read_tensors(Path(weights))  # our reader says what is wrong
            raise InputError(f"{source} would run code: give a file with tensors alone") from error
        tokenizer = open_clip.get_tokenizer(architecture)
    if options.get("quick_gelu") != _is_quick(architecture) and "quick_gelu" in options:
        taken = "QuickGELU" if options["quick_gelu"] else "GELU"
        print(
            f"diffclip: {weights} was trained with {taken}, which is taken in place of {architecture}'s activation",
            file=sys.stderr,
        )
    if isinstance(tokenizer, open_clip.SimpleTokenizer):  # ours has its ids
        try:
            return from_open_clip(model, source)
        except InputError:
            if only_clip:
                raise
        except AttributeError as error:
            if only_clip:
                raise refuse(source, f"another build ({error})") from error
    elif only_clip:
        raise refuse(source, f"the tokenizer {type(tokenizer).__name__}")
    cfg = _prepared(model)
    transform = open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(**cfg), is_train=False
    )
    preprocess = LibraryTransform(transform, (cfg["mean"], cfg["std"]), repr(transform))
    scale = getattr(model, "logit_scale", None)
    wrapped = WrappedModel(model, source, model.encode_image, model.encode_text, scale)
    return wrapped, preprocess, tokenizer


def _find_weights(architecture: str, weights: str, source: str) -> dict[str, Any]:
    """Return the arguments of `create_model` for a tag or a file, or raise `InputError` if there is none."""
    import open_clip

    if architecture not in open_clip.list_models():
        names, advice = open_clip.list_models(), "open_clip.list_models() has the names"
        raise unknown_name("architecture of open_clip", architecture, names, advice)
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    tag = open_clip.get_pretrained_cfg(architecture, weights)
    if not tag and not Path(weights).is_file():
        fault = f"{weights} is neither a file nor a tag" if weights else "it names no weights"
        raise InputError(
            f"{source}: {fault}: give a file, or a tag of {architecture}: {', '.join(tags) or '(none)'}"
        )
    # open_clip offers OpenAI's weights and many others for architectures with GELU and with QuickGELU, and uses the
    # activation of the architecture; the tag has the activation that the weights were trained with
    quick = bool(tag.get("quick_gelu", False)) if tag else _is_quick(architecture)
    return {"pretrained": weights, "quick_gelu": quick}


def _is_quick(architecture: str) -> bool:
    import open_clip

    return bool((open_clip.get_model_config(architecture) or {}).get("quick_gelu", False))


def from_open_clip(model: nn.Module, source: str = "the model") -> CLIP:
    """Convert a model of `open_clip.create_model` to ours, in float32 on the CPU. A part that ours lacks, as another
    tower, pooling, activation or LayerScale, raises `InputError`."""
    their: Any = model
    visual: Any = getattr(model, "visual", None)
    text: Any = getattr(model, "text", model)
    has_projections = isinstance(getattr(text, "text_projection", None), Tensor)
    if getattr(visual, "proj", None) is None or not has_projections:
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
    check_outputs(converted, model, their.encode_image, their.encode_text, source)
    return converted


def _prepared(model: nn.Module) -> dict[str, Any]:
    """Return the fields of open_clip's `PreprocessCfg` that it keeps with the model, or its defaults."""
    from open_clip import get_model_preprocess_cfg
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    return merge_preprocess_dict(PreprocessCfg(), get_model_preprocess_cfg(model))


def _preprocess(model: nn.Module, source: str) -> dict[str, Any]:
    """Return the fields of `PreprocessConfig`."""
    prepared = _prepared(model)
    if prepared["resize_mode"] == "longest":
        raise refuse(source, "images with borders (resize_mode longest)")
    return {
        "mean": prepared["mean"],
        "std": prepared["std"],
        # open_clip uses "random" for training only; its evaluation then scales bicubically
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
