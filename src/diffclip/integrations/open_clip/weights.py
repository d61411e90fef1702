"""Weights for and from open_clip: anything of ours in, its trainer's checkpoints out."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from diffclip.config import CLIPConfig, name_of, parse_config
from diffclip.errors import InputError
from diffclip.model import CLIP
from diffclip.weights import CONFIG_KEY, Weights, put_weights, read_weights


def load_checkpoint(file: str | Path) -> CLIP:
    """The model, in evaluation mode on the CPU, of a checkpoint that open_clip's trainer wrote of a model of ours.
    `diffclip.save_weights` makes a saved folder of it.

    Raises:
        InputError: unreadable, or without its configuration.
    """
    weights = read_checkpoint(file)
    if weights.config is None:
        raise InputError(f"{file} does not tell its model: diffclip.load(file, model=NAME) may read it")
    return put_weights(CLIP(weights.config, seed=0), weights, file).eval()


def read_checkpoint(source: str | Path) -> Weights:
    """What `source` holds: a run folder, a saved folder, a file of ours, `hf-hub:OWNER/NAME`, or a checkpoint of
    open_clip's trainer, whose configuration is in the metadata of its state dict.

    Raises:
        InputError: no usable weights there.
    """
    from diffclip.loading import HUB_PREFIX, fetch
    from diffclip.model_source import find_model
    from diffclip.pickled import read_pickle

    source = str(source)
    if not (source.startswith(HUB_PREFIX) or Path(source).exists()):
        raise InputError(
            f"{source} does not exist: give a run folder, a saved folder, a file with weights or hf-hub:OWNER/NAME"
        )
    found = str(find_model(source))
    path = fetch(found) if found.startswith(HUB_PREFIX) else Path(found)
    weights = read_weights(path)
    if weights.config is None and path.is_file() and path.suffix != ".safetensors":
        contents = read_pickle(path)
        for entry in getattr(contents.get("state_dict", contents), "_metadata", {}).values():
            if CONFIG_KEY in entry:
                return weights._replace(config=parse_config(json.loads(entry[CONFIG_KEY]), str(path)))
    return weights


def config_for(weights: Weights, named: CLIPConfig, source: str) -> CLIPConfig:
    """The configuration in a file, which must be of the model named; where there is none, that model's with the sizes
    of the file.

    Raises:
        InputError: the file holds another model.
    """
    saved = weights.config
    if saved is not None:
        if (name_of(saved), saved.lambda_init) != (name_of(named), named.lambda_init):
            held, asked = (f"{name_of(config)} (λ_init {config.lambda_init})" for config in (saved, named))
            raise InputError(f"{source} holds {held}, not {asked}: name the model that it holds")
        return saved
    config = named.model_copy(deep=True)
    patches, words = (weights.state.get(key) for key in ("visual.pos_embed", "positional_embedding"))
    if patches is not None and patches.ndim == 3 and patches.shape[1] > 1:
        config = at_size(config, math.isqrt(patches.shape[1] - 1) * config.vision.patch_size)
    if words is not None and words.ndim == 2 and len(words) > 1:
        config.text.context_length = len(words)
    config.logit_bias = "logit_bias" in weights.state
    return config


def at_size(config: CLIPConfig, size: int) -> CLIPConfig:
    """`config` for pictures of `size`; the margin around the crop keeps its share.

    Raises:
        InputError: the size is not a multiple of the patch.
    """
    fields = config.model_dump()
    before, fields["vision"]["image_size"] = config.vision.image_size, size
    if config.preprocess.resize is not None:
        fields["preprocess"]["resize"] = round(config.preprocess.resize * size / before)
    return parse_config(fields, f"pictures of {size}")


def put(model: CLIP, weights: Weights, source: str) -> None:
    """Read `weights` into `model`. As in open_clip, positions of words fit another context, and a missing bias is 0.

    Raises:
        InputError: weights of another model.
    """
    from open_clip.model import resize_text_pos_embed

    state = dict(weights.state)
    if state.get("positional_embedding", torch.empty(0)).shape[1:] == model.positional_embedding.shape[1:]:
        resize_text_pos_embed(state, model)
    if model.config.logit_bias and "logit_scale" in state:
        state.setdefault("logit_bias", torch.zeros_like(state["logit_scale"]))
    put_weights(model, weights._replace(state=state), source)
