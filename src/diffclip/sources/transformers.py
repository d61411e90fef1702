"""Models of transformers: converted if they are CLIPs or were saved from ours, else wrapped as they are.

A folder of ours in transformers' layout (`diffclip convert --transformers`) has the names below.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from PIL.Image import Resampling
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoTokenizer, CLIPModel, PreTrainedConfig
from transformers.utils import logging
from transformers.utils.hub import cached_file

from diffclip.attention import attention_layer
from diffclip.config import (
    STATISTICS,
    CLIPConfig,
    PreprocessConfig,
    TextConfig,
    VisionConfig,
    mlp_ratio,
    parse_config,
)
from diffclip.errors import InputError, explain_errors
from diffclip.model import CLIP, empty_model
from diffclip.sources.conversion import (
    WAY_OUT,
    activation_of,
    assemble,
    check_outputs,
    refuse,
    silence_warnings,
)
from diffclip.sources.wrapped import LibraryTransform, WrappedModel
from diffclip.tokenizer import check_end_of_text
from diffclip.weights import WEIGHTS_FILE, Weights, put_weights

# transformers' names of our fields, where they differ
_FIELDS = {
    **{"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"},
    **{"activation": "hidden_act", "norm_eps": "layer_norm_eps", "context_length": "max_position_embeddings"},
}
TOWER_FIELDS = {
    "vision": {name: _FIELDS.get(name, name) for name in VisionConfig.model_fields},
    "text": {name: _FIELDS.get(name, name) for name in TextConfig.model_fields},
}
"""transformers' name of each field of our configurations, by tower."""
PROJECTIONS = {"visual_projection.weight": "image_projection", "text_projection.weight": "text_projection"}
"""Our names of the projections, which transformers stores transposed."""
_INTERPOLATIONS: dict[int, Literal["bilinear", "bicubic"]] = {
    Resampling.BILINEAR: "bilinear",
    Resampling.BICUBIC: "bicubic",
}
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_NAMES = (
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


def read_transformers(name: str, only_clip: bool) -> CLIP | tuple[WrappedModel, LibraryTransform, Any]:
    """Read a model of transformers; no code that comes with weights is run.

    Args:
        name: a saved folder, or a name on the hub.
        only_clip: refuse a model that cannot be converted, with the reason.

    Returns:
        Our `CLIP`, or the model with its preparation and tokenizer (None for a model without texts).
    """
    source = f"transformers:{name}"
    if Path(name).is_file():
        raise InputError(f"{source} is a file: give a folder that transformers saved, or a name on the hub")
    with silence_warnings(), hide_progress_bar(), explain_errors(f"{source} cannot be read", WAY_OUT):
        kind = PreTrainedConfig.get_config_dict(name)[0].get("model_type")
        if kind == "diffclip":
            return load_transformers(name, source)
        if kind != "clip":
            if only_clip:
                raise InputError(
                    f"{source} has the model_type {kind!r}, not 'clip': give a CLIP of transformers"
                )
            return _wrap(name, source)
        model = read_whole(CLIPModel, name, source, dtype=torch.float32)
        preprocess = read_preprocess(name, model.config.vision_config.image_size, source)
        try:
            converted = from_transformers(model, source)
        except InputError:
            if only_clip:
                raise
            return _wrap(name, source)
    if preprocess is None:
        print(f"diffclip: {source} has no image processor: images are prepared as OpenAI's", file=sys.stderr)
    else:
        converted.config.preprocess = preprocess
    return converted


def _wrap(name: str, source: str) -> tuple[WrappedModel, LibraryTransform, Any]:
    options = {"trust_remote_code": False}
    config = AutoConfig.from_pretrained(name, **options)
    if type(config) not in AutoModel._model_mapping:
        raise InputError(
            f"{source} is of the kind {config.model_type!r}, which this transformers does not know"
        )
    model = read_whole(AutoModel, name, source, dtype=torch.float32, **options)
    processor: Any = AutoImageProcessor.from_pretrained(name, **options)  # type: ignore[no-untyped-call]
    if more := sorted({*processor.model_input_names} - {"pixel_values"}):
        raise InputError(
            f"{source} reads {', '.join(more)} beside an image's pixels, as NaFlex models do: give weights for images "
            "of one size"
        )
    statistics = (processor.image_mean, processor.image_std)
    preprocess = LibraryTransform(
        lambda image: processor(images=image, return_tensors="pt")["pixel_values"][0],
        statistics if processor.do_normalize else ((0.0,) * 3, (1.0,) * 3),
        processor.to_json_string(),
    )
    if not hasattr(model, "get_image_features"):
        if model.main_input_name != "pixel_values":
            raise InputError(f"{source} has no image encoder: give a model of images, or of images and texts")
        encoder = WrappedModel(model, source, lambda images: features_of(model(pixel_values=images)))
        return encoder, preprocess, None
    tokenizer = AutoTokenizer.from_pretrained(name, **options)
    text = getattr(config, "text_config", config)
    longest = min(tokenizer.model_max_length, getattr(text, "max_position_embeddings", math.inf))
    # a model that takes no mask was trained with texts of one length
    padding = "longest" if "attention_mask" in tokenizer.model_input_names else "max_length"
    how = {"padding": padding, "truncation": True, "max_length": longest, "return_tensors": "pt"}
    wrapped = WrappedModel(
        model,
        source,
        lambda images: features_of(model.get_image_features(pixel_values=images)),
        lambda tokens: features_of(model.get_text_features(**tokens)),
        getattr(model, "logit_scale", None),
    )
    return wrapped, preprocess, lambda texts: tokenizer(list(texts), **how)


def features_of(output: Any) -> Tensor:
    """Return the features [B, D] in what a method of transformers returns: a tensor, or an output object."""
    if not isinstance(output, Tensor):
        pooled = getattr(output, "pooler_output", None)
        output = output.last_hidden_state[:, 0] if pooled is None else pooled
    return output.flatten(1)


def core_config(fields: Mapping[str, Any], source: str) -> CLIPConfig:
    """Convert the configuration of a `DiffCLIPModel`, as transformers saves it, to ours."""
    saved = {tower: fields.get(f"{tower}_config") or {} for tower in TOWER_FIELDS}
    starts = {
        tower.get("lambda_init", 0.8)
        for tower in saved.values()
        if "lambda_init" in attention_layer(tower.get("attention", "softmax")).options
    }
    if len(starts) > 1:
        raise InputError(f"the towers have several lambda_init ({starts}): give one value")
    towers = {
        tower: {ours: saved[tower][theirs] for ours, theirs in names.items() if theirs in saved[tower]}
        for tower, names in TOWER_FIELDS.items()
    }
    whole = {
        "embed_dim": fields.get("projection_dim", 512),
        "lambda_init": next(iter(starts), saved["vision"].get("lambda_init", 0.8)),
        "logit_bias": fields.get("logit_bias", False),
        "preprocess": fields.get("preprocess") or {},
    }
    return parse_config(whole | towers, source)


def core_name(name: str) -> str:
    """Return our name of a parameter of a `DiffCLIPModel` or of one of its towers."""
    name = name.removeprefix("vision_model.").removeprefix("text_model.")
    return PROJECTIONS.get(name, name)


def load_transformers(place: str | Path, source: str = "") -> CLIP:
    """Load a model that transformers saved as a `DiffCLIPModel` to `place`, a folder or a name on the hub.

    `source` is its name in error messages, by default `place`.
    """
    source = source or str(place)
    fields = PreTrainedConfig.get_config_dict(place)[0]
    config = core_config(fields, source)
    check_end_of_text(fields.get("text_config", {}).get("eos_token_id"), config.text.vocab_size, source)
    config.preprocess = read_preprocess(place, config.vision.image_size, source) or config.preprocess
    saved = load_file(str(cached_file(place, WEIGHTS_FILE)))  # a missing file is its error, not None
    state = {
        core_name(name): (value.T if name in PROJECTIONS else value).float().contiguous()
        for name, value in saved.items()
    }
    return put_weights(empty_model(config), Weights(state), source).eval()


def from_transformers(model: nn.Module, source: str = "the model") -> CLIP:
    """Convert a `transformers.CLIPModel` to ours, in float32 on the CPU. A model of another kind, or with a part that
    ours lacks, raises `InputError`."""
    their: Any = model
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", type(model).__name__)
    if kind != "clip":
        raise refuse(source, f"the kind {kind!r} instead of 'clip'")
    vision, text = config.vision_config, config.text_config
    end = None if text.eos_token_id == _OLD_END else text.eos_token_id
    check_end_of_text(end, text.vocab_size, source)
    mean, std = STATISTICS["openai"]
    fields: dict[str, Any] = {
        "embed_dim": config.projection_dim,
        "preprocess": {"mean": mean, "std": std, "interpolation": "bicubic"},
        "vision": _sizes(vision, source)
        | {
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "norm_eps": vision.layer_norm_eps,
            "pre_norm": True,
            "patch_bias": False,
        },
        "text": _sizes(text, source)
        | {"context_length": text.max_position_embeddings, "vocab_size": text.vocab_size},
    }
    parameters = model.named_parameters()
    theirs = {name: value.T if name in PROJECTIONS else value for name, value in parameters}
    converted = assemble(fields, theirs, _NAMES, source)

    def encode_image(images: Tensor) -> Any:
        return their.get_image_features(images).pooler_output

    def encode_text(tokens: Tensor) -> Any:
        return their.get_text_features(tokens).pooler_output

    check_outputs(converted, model, encode_image, encode_text, source, end)
    return converted


def _sizes(tower: Any, source: str) -> dict[str, Any]:
    return {
        "width": tower.hidden_size,
        "layers": tower.num_hidden_layers,
        "heads": tower.num_attention_heads,
        "mlp_ratio": mlp_ratio(tower.hidden_size, tower.intermediate_size),
        "activation": activation_of(tower.hidden_act, source),
    }


def preprocess_of(processor: Any, image_size: int, source: str) -> PreprocessConfig:
    """Read the image preprocessing from a `processor` such as `image_processor_of` makes; errors name `source`."""
    size, square = dict(processor.size), {"height": image_size, "width": image_size}
    crop = dict(processor.crop_size) if processor.do_center_crop else None
    edge = size.get("shortest_edge", 0)
    squash = size == square and crop in (None, square)
    steps = processor.do_resize and processor.do_rescale and processor.do_normalize
    usual = steps and processor.resample in _INTERPOLATIONS and abs(processor.rescale_factor * 255 - 1) < 1e-6
    if not usual or not (
        squash or (size == {"shortest_edge": edge} and edge >= image_size and crop == square)
    ):
        raise InputError(
            f"{source}: its image processor (size {size}, crop {crop}, resample {processor.resample}) has no "
            "counterpart here: give one that scales to a square, or scales the shorter edge and crops the center"
        )
    return PreprocessConfig(
        mean=tuple(processor.image_mean),
        std=tuple(processor.image_std),
        interpolation=_INTERPOLATIONS[processor.resample],
        resize="squash" if squash else None if edge == image_size else edge,
    )


def read_preprocess(place: str | Path, image_size: int, source: str) -> PreprocessConfig | None:
    """Read the image preprocessing from the processor at `place` (a folder or hub name); None without a processor."""
    if Path(place).is_dir() and not any((Path(place) / file).is_file() for file in _PROCESSOR_FILES):
        return None
    kind: Any = AutoImageProcessor
    try:
        processor = kind.from_pretrained(place, trust_remote_code=False)
    except OSError:
        if Path(place).is_dir():
            raise
        return None  # a repository on the hub without a processor
    return preprocess_of(processor, image_size, source)


def read_whole(kind: Any, place: str | Path, source: str | Path, **options: Any) -> Any:
    """Load a model of the transformers class `kind`, in evaluation mode, and refuse files in which a weight is missing.
    Extra weights are ignored: other people's files may have some that newer releases do not use."""
    model, report = kind.from_pretrained(place, use_safetensors=True, output_loading_info=True, **options)
    if lacking := sorted(report["missing_keys"]):
        raise InputError(f"{source} is damaged, its weights lack {lacking[0]}: save or fetch it again")
    return model.eval()


@contextmanager
def hide_progress_bar() -> Iterator[None]:
    """Hide transformers' progress bars: loading takes a second, and the command line has its own progress bar."""
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
