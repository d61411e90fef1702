"""Weights for open_clip: anything of ours, and its trainer's checkpoints."""

from __future__ import annotations

import math

import torch

from diffclip.config import CLIPConfig, name_of, parse_config
from diffclip.errors import InputError
from diffclip.model import CLIP
from diffclip.weights import Weights, put_weights


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
    """`config` for images of `size`; the margin around the crop keeps its share.

    Raises:
        InputError: the size is not a multiple of the patch.
    """
    fields = config.model_dump()
    before, fields["vision"]["image_size"] = config.vision.image_size, size
    if isinstance(config.preprocess.resize, int):
        fields["preprocess"]["resize"] = round(config.preprocess.resize * size / before)
    return parse_config(fields, f"images of {size}")


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
