"""Read models of other libraries by name: `open_clip:NAME/PRETRAINED`, `transformers:FOLDER`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch

from diffclip.config import OPEN_CLIP, TRANSFORMERS
from diffclip.convert.from_libraries import from_open_clip, from_transformers, quiet, refuse
from diffclip.errors import InputError, explained, require_group, unknown
from diffclip.model import CLIP

_WAY_OUT = "check the name, the files and the connection"


def read_foreign(source: str) -> CLIP:
    """Read the model that `source` names, and convert it to ours. No code that comes with weights is run.

    Args:
        source: `open_clip:ViT-B-16/laion2b_s34b_b88k` (or a file in place of the tag; `:` does in place of `/`), or
            `transformers:NAME`, a saved folder or a name on the hub.

    Raises:
        InputError: no such model, weights that cannot be read, or a model that cannot be converted.
    """
    return _read_open_clip(source) if source.startswith(OPEN_CLIP) else _read_transformers(source)


def _read_open_clip(source: str) -> CLIP:
    import open_clip

    architecture, weights = (*re.split("[/:]", source.removeprefix(OPEN_CLIP), maxsplit=1), "")[:2]
    if architecture not in open_clip.list_models():
        raise unknown("architecture of open_clip", architecture, open_clip.list_models())
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    tag = open_clip.get_pretrained_cfg(architecture, weights)
    if not tag and not Path(weights).is_file():
        fault = f"{weights} is neither a file nor a tag" if weights else "it names no weights"
        raise InputError(
            f"{source}: {fault}: give a file, or a tag of {architecture}: {', '.join(tags) or '(none)'}"
        )
    config = open_clip.get_model_config(architecture)
    for tower, key in (("vision", "timm_model_name"), ("text", "hf_model_name")):
        if name := config.get(f"{tower}_cfg", {}).get(key):  # before a download
            raise refuse(source, f"the {tower} tower {name} of another library")
    # OpenAI's weights and many others are offered under architectures with GELU and with QuickGELU, and open_clip
    # follows the architecture: the tag says what the weights were trained with
    of_architecture = bool(config.get("quick_gelu", False))
    quick = bool(tag.get("quick_gelu", False)) if tag else of_architecture
    with quiet(), explained(f"{source} cannot be read", _WAY_OUT):
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
        load_transformers,
        no_progress_bar,
        read_preprocess,
        read_whole,
    )

    place = source.removeprefix(TRANSFORMERS)
    with quiet(), no_progress_bar(), explained(f"{source} cannot be read", _WAY_OUT):
        kind = PreTrainedConfig.get_config_dict(place)[0].get("model_type")
        if kind == "diffclip":
            return load_transformers(place, source)
        if kind != "clip":
            raise InputError(f"{source} has the model_type {kind!r}, not 'clip': give a CLIP of transformers")
        model = read_whole(CLIPModel, place, source, dtype=torch.float32)
        preprocess = read_preprocess(place, model.config.vision_config.image_size, source)
    converted = from_transformers(model, source)
    if preprocess is None:
        print(f"diffclip: {source} has no image processor: images are prepared as OpenAI's", file=sys.stderr)
    else:
        converted.config.preprocess = preprocess
    return converted
