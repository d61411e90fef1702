"""Read ViT CLIPs of open_clip and transformers, and convert them to our plain `CLIP` with the same outputs.

A part that ours lacks shows in weights that ours does not have, or in different outputs of the two models.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffclip.config import STATISTICS, mlp_ratio, parse_config
from diffclip.errors import InputError, explain_errors, require_group, unknown_name
from diffclip.model import CLIP
from diffclip.model_source import OPEN_CLIP, TRANSFORMERS
from diffclip.published import from_published
from diffclip.tokenizer import check_end_of_text
from diffclip.weights import Weights, put_weights

_Encode = Callable[[Tensor], Any]
# relative to the largest feature; float32 sums in another order differ by about 1e-6
_TOLERANCE = 1e-4
_OPEN_CLIP_NAMES = (
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
_TRANSFORMERS_NAMES = (
    (r"^vision_model\.embeddings\.class_embedding$", "visual.cls_token"),
    (r"^vision_model\.embeddings\.position_embedding\.weight$", "visual.pos_embed"),
    (r"^vision_model\.embeddings\.patch_embedding\.", "visual.patch_embed.proj."),
    (r"^vision_model\.pre_layrnorm\.", "visual.norm_pre."),  # the published name has this spelling
    (r"^vision_model\.post_layernorm\.", "visual.norm."),
    (r"^vision_model\.encoder\.layers\.(\d+)\.layer_norm", r"visual.blocks.\1.norm"),
    (r"^vision_model\.encoder\.layers\.", "visual.blocks."),
    (r"^text_model\.embeddings\.position_embedding\.weight$", "positional_embedding"),
    (r"^text_model\.embeddings\.", ""),
    (r"^text_model\.final_layer_norm\.", "ln_final."),
    (r"^text_model\.encoder\.layers\.(\d+)\.layer_norm", r"transformer.resblocks.\1.ln_"),
    (r"^text_model\.encoder\.layers\.", "transformer.resblocks."),
    (r"^(transformer\.resblocks\.\d+\.mlp)\.fc1\.", r"\1.c_fc."),
    (r"^(transformer\.resblocks\.\d+\.mlp)\.fc2\.", r"\1.c_proj."),
    (r"\.self_attn\.", ".attn."),
    (r"^visual_projection\.weight$", "image_projection"),
    (r"^text_projection\.weight$", "text_projection"),
)
# `eos_token_id` of configs from before transformers 4.31, whatever the tokenizer has; the largest id is then read
_OLD_END = 2
_WAY_OUT = "check the name, the files and the connection"


def read_foreign(source: str) -> CLIP:
    """Read the model that `source` names, and convert it to ours. No code that comes with weights is run.

    Args:
        source: `open_clip:ViT-B-16/laion2b_s34b_b88k` (a file may replace the tag, and `:` the `/`), or
            `transformers:NAME` with a saved folder or a name on the hub.

    Raises:
        InputError: no such model, weights that cannot be read, or a model that cannot be converted.
    """
    return _read_open_clip(source) if source.startswith(OPEN_CLIP) else _read_transformers(source)


def _read_open_clip(source: str) -> CLIP:
    import open_clip

    architecture, weights = (*re.split("[/:]", source.removeprefix(OPEN_CLIP), maxsplit=1), "")[:2]
    if architecture not in open_clip.list_models():
        raise unknown_name("architecture of open_clip", architecture, open_clip.list_models())
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    tag = open_clip.get_pretrained_cfg(architecture, weights)
    if not tag and not Path(weights).is_file():
        fault = f"{weights} is neither a file nor a tag" if weights else "it names no weights"
        raise InputError(
            f"{source}: {fault}: give a file, or a tag of {architecture}: {', '.join(tags) or '(none)'}"
        )
    config = open_clip.get_model_config(architecture)
    for tower, key in (("vision", "timm_model_name"), ("text", "hf_model_name")):
        if name := config.get(f"{tower}_cfg", {}).get(key):  # check before the download
            raise _refuse(source, f"the {tower} tower {name} of another library")
    # open_clip offers OpenAI's weights and many others for architectures with GELU and with QuickGELU, and uses the
    # activation of the architecture; the tag has the activation that the weights were trained with
    of_architecture = bool(config.get("quick_gelu", False))
    quick = bool(tag.get("quick_gelu", False)) if tag else of_architecture
    with silence_warnings(), explain_errors(f"{source} cannot be read", _WAY_OUT):
        model = open_clip.create_model(architecture, pretrained=weights, weights_only=True, quick_gelu=quick)
    converted = from_open_clip(model, source)
    if quick != of_architecture:
        taken = "QuickGELU" if quick else "GELU"
        print(
            f"diffclip: {weights} was trained with {taken}, which is taken in place of {architecture}'s activation",
            file=sys.stderr,
        )
    return converted


def _read_transformers(source: str) -> CLIP:
    require_group("vlm", "transformers")
    from transformers import CLIPModel, PreTrainedConfig

    from diffclip.integrations.transformers.conversion import (
        hide_progress_bar,
        load_transformers,
        read_preprocess,
        read_whole,
    )

    location = source.removeprefix(TRANSFORMERS)
    with silence_warnings(), hide_progress_bar(), explain_errors(f"{source} cannot be read", _WAY_OUT):
        kind = PreTrainedConfig.get_config_dict(location)[0].get("model_type")
        if kind == "diffclip":
            return load_transformers(location, source)
        if kind != "clip":
            raise InputError(f"{source} has the model_type {kind!r}, not 'clip': give a CLIP of transformers")
        model = read_whole(CLIPModel, location, source, dtype=torch.float32)
        preprocess = read_preprocess(location, model.config.vision_config.image_size, source)
    converted = from_transformers(model, source)
    if preprocess is None:
        print(f"diffclip: {source} has no image processor: images are prepared as OpenAI's", file=sys.stderr)
    else:
        converted.config.preprocess = preprocess
    return converted


def from_open_clip(model: nn.Module, source: str = "the model") -> CLIP:
    """Convert a model of `open_clip.create_model` to ours, in float32 on the CPU.

    Raises:
        InputError: the model has a part that ours lacks (another tower, pooling, activation, LayerScale …).
    """
    their: Any = model
    visual: Any = getattr(model, "visual", None)
    text: Any = getattr(model, "text", model)
    if getattr(visual, "proj", None) is None or not isinstance(
        getattr(text, "text_projection", None), Tensor
    ):
        raise _refuse(source, f"the towers {type(visual).__name__} and {type(text).__name__}")
    fields: dict[str, Any] = {
        "embed_dim": visual.proj.shape[1],
        "logit_bias": getattr(model, "logit_bias", None) is not None,
        "preprocess": _preprocess(model, source),
        "vision": _open_clip_sizes(visual.transformer, source)
        | {
            "image_size": visual.image_size[0],
            "patch_size": visual.patch_size[0],
            "norm_eps": visual.ln_post.eps,
            "pre_norm": isinstance(visual.ln_pre, nn.LayerNorm),
            "patch_bias": visual.conv1.bias is not None,
        },
        "text": _open_clip_sizes(text.transformer, source)
        | {
            "context_length": text.positional_embedding.shape[0],
            "vocab_size": text.token_embedding.num_embeddings,
        },
    }
    converted = _assemble(fields, dict(model.named_parameters()), _OPEN_CLIP_NAMES, source)
    _check_outputs(converted, model, their.encode_image, their.encode_text, source)
    return converted


def _preprocess(model: nn.Module, source: str) -> dict[str, Any]:
    """Return the fields of `PreprocessConfig`: the values that open_clip keeps with the model, or its defaults."""
    from open_clip import get_model_preprocess_cfg
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    prepared = merge_preprocess_dict(PreprocessCfg(), get_model_preprocess_cfg(model))
    if prepared["resize_mode"] == "longest":
        raise _refuse(source, "images with borders (resize_mode longest)")
    return {
        "mean": prepared["mean"],
        "std": prepared["std"],
        # open_clip uses "random" for training only; its evaluation then scales bicubically
        "interpolation": "bilinear" if prepared["interpolation"] == "bilinear" else "bicubic",
        "resize": "squash" if prepared["resize_mode"] == "squash" else None,
    }


def _open_clip_sizes(transformer: Any, source: str) -> dict[str, Any]:
    """Return the fields that the configurations of both towers share."""
    first = transformer.resblocks[0]
    width = first.attn.out_proj.out_features
    return {
        "width": width,
        "layers": len(transformer.resblocks),
        "heads": first.attn.num_heads,
        "mlp_ratio": mlp_ratio(width, first.mlp.c_fc.out_features),
        "activation": _activation_of(first.mlp.gelu, source),
    }


def from_transformers(model: nn.Module, source: str = "the model") -> CLIP:
    """Convert a `transformers.CLIPModel` to ours, in float32 on the CPU.

    Raises:
        InputError: the model is of another kind, or has a part that ours lacks.
    """
    their: Any = model
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", type(model).__name__)
    if kind != "clip":
        raise _refuse(source, f"the kind {kind!r} instead of 'clip'")
    vision, text = config.vision_config, config.text_config
    end = None if text.eos_token_id == _OLD_END else text.eos_token_id
    check_end_of_text(end, text.vocab_size, source)
    mean, std = STATISTICS["openai"]
    fields: dict[str, Any] = {
        "embed_dim": config.projection_dim,
        "preprocess": {"mean": mean, "std": std, "interpolation": "bicubic"},
        "vision": _transformers_sizes(vision, source)
        | {
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "norm_eps": vision.layer_norm_eps,
            "pre_norm": True,
            "patch_bias": False,
        },
        "text": _transformers_sizes(text, source)
        | {"context_length": text.max_position_embeddings, "vocab_size": text.vocab_size},
    }
    theirs = {
        name: value.T if name.endswith("_projection.weight") else value
        for name, value in model.named_parameters()
    }
    converted = _assemble(fields, theirs, _TRANSFORMERS_NAMES, source)
    _check_outputs(
        converted,
        model,
        lambda images: their.get_image_features(images).pooler_output,
        lambda tokens: their.get_text_features(tokens).pooler_output,
        source,
        end,
    )
    return converted


def _transformers_sizes(tower: Any, source: str) -> dict[str, Any]:
    return {
        "width": tower.hidden_size,
        "layers": tower.num_hidden_layers,
        "heads": tower.num_attention_heads,
        "mlp_ratio": mlp_ratio(tower.hidden_size, tower.intermediate_size),
        "activation": _activation_of(tower.hidden_act, source),
    }


def _assemble(
    fields: dict[str, Any], theirs: Mapping[str, Tensor], names: Sequence[tuple[str, str]], source: str
) -> CLIP:
    """Build a model of the configuration `fields` in float32 on the CPU, in evaluation mode, from the weights `theirs`.

    `names` are patterns of the original's names and their replacements, applied in order.
    """
    state: dict[str, Tensor] = {}
    for name, value in theirs.items():
        for pattern, replacement in names:
            name = re.sub(pattern, replacement, name)
        state[name] = value.detach().float().cpu()
    state = from_published(state)  # joins queries, keys and values
    state["visual.cls_token"] = state["visual.cls_token"].reshape(1, 1, -1)
    state["visual.pos_embed"] = state["visual.pos_embed"][None]
    with torch.device("meta"):  # without the initial draw
        model = CLIP(parse_config(fields, source), seed=0)
    ours, loaded = (
        {(name, t.shape) for name, t in tensors.items()} for tensors in (model.state_dict(), state)
    )
    if odd := sorted(name for name, _ in ours ^ loaded):
        raise _refuse(source, f"weights that differ from ours ({', '.join(odd[:3])})")
    return put_weights(model, Weights(state, published=False, config=None), source).eval()


@torch.no_grad()
def _check_outputs(
    model: CLIP, original: nn.Module, image: _Encode, text: _Encode, source: str, end: int | None = None
) -> None:
    """Check that `model` and the encoders `image` and `text` of the `original` agree on random images and texts.

    Texts end with the id `end`, by default the last of the vocabulary.
    """
    generator = torch.Generator().manual_seed(0)
    size, length = model.config.vision.image_size, model.config.text.context_length
    end = model.config.text.vocab_size - 1 if end is None else end
    images = torch.randn(2, 3, size, size, generator=generator)
    tokens = torch.randint(1, end, (2, length), generator=generator)
    tokens[0, -1], tokens[1, length // 2] = end, end
    tokens[1, length // 2 + 1 :] = 0
    original.eval()
    pairs = {
        "image": (model.encode_image(images), image(images)),
        "text": (model.encode_text(tokens), text(tokens)),
    }
    for tower, (ours, theirs) in pairs.items():
        gap = float((ours - theirs.float()).abs().max())
        if not gap <= _TOLERANCE * float(theirs.abs().max()):
            raise _refuse(
                source, f"a part that is not looked for: its {tower} features would differ by {gap:.2g}"
            )


def _refuse(source: str, part: str) -> InputError:
    """Make the error for a part that has no counterpart here."""
    return InputError(
        f"{source} has {part}, which cannot be converted: use a ViT CLIP with class-token pooling, GELU or "
        "QuickGELU and plain attention"
    )


def _activation_of(module: nn.Module | str, source: str) -> str:
    """Return the name of an activation in our config; raise `InputError` unless it is GELU or QuickGELU."""
    name = module if isinstance(module, str) else type(module).__name__
    if isinstance(module, nn.GELU) and module.approximate != "none":
        name = f"GELU approximated by {module.approximate}"
    known = {"GELU": "gelu", "gelu": "gelu", "QuickGELU": "quick_gelu", "quick_gelu": "quick_gelu"}
    if name not in known:
        raise _refuse(source, f"the activation {name}")
    return known[name]


@contextmanager
def silence_warnings() -> Iterator[None]:
    """Drop the warnings and logs of other libraries, which are about their internals."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(level)
