"""open_clip's `create_model` for a model of ours: weights, sizes, the type of numbers, how images are prepared."""

from __future__ import annotations

import inspect
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from diffclip.config import CLIPConfig, name_of, parse_config
from diffclip.errors import InputError
from diffclip.integrations.open_clip.model import OpenCLIPModel
from diffclip.loading import locate
from diffclip.weights import Weights, put_weights, read_weights

MODEL_KEY = "diffclip"  # of our configuration within open_clip's
USED = {
    *("model_name", "pretrained", "load_weights", "precision", "device", "cache_dir", "output_dict"),
    *("force_patch_dropout", "force_image_size", "force_context_length", "force_preprocess_cfg"),
    *("require_pretrained", "model_kwargs"),
}
# reading never runs code here, and no tower has weights of its own to start from
_WITHOUT_EFFECT = {"weights_only", "pretrained_image", "pretrained_text", "pretrained_hf"}
_STARTS = {"init_logit_scale": "logit_scale", "init_logit_bias": "logit_bias"}

Given = Mapping[str, Any]
"""The arguments of `create_model` by name, defaults included."""


class Found(NamedTuple):
    """A model of ours: its configuration, where its weights are, and how a folder of open_clip's prepares images."""

    config: CLIPConfig
    weights: str | Path | None
    preprocess: Mapping[str, Any]


def find(given: Given) -> Found | None:
    """The model of ours that `create_model` is asked for; None if it is not ours."""
    from open_clip import factory
    from open_clip.constants import HF_CONFIG_NAME, HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

    schema, name = factory.parse_model_name(given["model_name"])
    if schema is None:
        fields = open_fields = factory.get_model_config(name.replace("/", "-")) or {}
        weights: str | Path | None = given["pretrained"] or None
    else:
        config_file = _file(schema, name, HF_CONFIG_NAME, given)
        open_fields = json.loads(config_file.read_text(encoding="utf-8")) if config_file else {}
        fields = open_fields.get("model_cfg", {})
        if MODEL_KEY in fields:
            # what torch saved first: it carries the configuration of the weights, see `OpenCLIPModel`
            files = (_file(schema, name, file, given) for file in (HF_WEIGHTS_NAME, HF_SAFE_WEIGHTS_NAME))
            weights = next(filter(None, files), None)
    if MODEL_KEY not in fields:
        return None
    preprocess = {key: value for key, value in open_fields.get("preprocess_cfg", {}).items() if key != "size"}
    return Found(parse_config(fields[MODEL_KEY], given["model_name"]), weights, preprocess)


def _file(schema: str, place: str, name: str, given: Given) -> Path | None:
    """A file of a folder, or of a model on the hub; None if there is none, or it cannot be had."""
    if schema == "local-dir":
        file = Path(place) / name
        return file if file.is_file() else None
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(place, name, cache_dir=given["cache_dir"]))
    except Exception:  # the client raises many kinds; open_clip then says what it finds wrong
        return None


def create(found: Found, given: Given, signature: inspect.Signature) -> OpenCLIPModel:
    """The model, in training mode as open_clip's are, on its device and in its type.

    Raises:
        InputError: an argument that our models do not take, unusable weights, or weights of another model.
    """
    name, size, starts = given["model_name"], given["force_image_size"], given["model_kwargs"]
    asked = [
        key
        for key, value in given.items()
        if key not in USED | _WITHOUT_EFFECT and value != signature.parameters[key].default
    ]
    asked += [key for key in starts if key not in _STARTS.keys() | _WITHOUT_EFFECT]
    if asked:
        raise InputError(f"{', '.join(sorted(asked))} cannot be given for {name}: leave it out")
    if not isinstance(size, int | None):
        if len(set(size)) != 1:
            raise InputError(f"force_image_size {tuple(size)} is not square: give one number")
        size = size[0]
    weights = read_weights(locate(found.weights)) if found.weights and given["load_weights"] else None
    if weights is None and given["require_pretrained"]:
        raise InputError(f"no weights for {name}: give pretrained= a saved folder, a run folder or a file")
    config = found.config if weights is None else _config_for(weights, found.config, str(found.weights))
    fields = config.model_dump()
    fields["logit_bias"] |= starts.get("init_logit_bias") is not None
    fields["text"]["context_length"] = given["force_context_length"] or config.text.context_length
    if given["force_patch_dropout"] is not None:
        fields["vision"]["patch_dropout"] = given["force_patch_dropout"]
    config = parse_config(fields, f"what is forced on {name}")
    if weights is None and size is not None:
        config = _at_size(config, size)
    model = OpenCLIPModel(config)
    if weights is not None:
        _put(model, weights, str(found.weights))
    else:
        logging.warning(f"No pretrained weights loaded for model '{name}'. Model initialized randomly.")
        for key, parameter in _STARTS.items():
            if starts.get(key) is not None:
                torch.nn.init.constant_(model.get_parameter(parameter), starts[key])
    if size is not None and size != model.config.vision.image_size:
        model.set_image_size(size)
    _set_preprocess(model, name, found.preprocess, given["force_preprocess_cfg"] or {})
    model.output_dict = bool(given["output_dict"])
    _cast(model, given["precision"], given["device"])
    return model


def _config_for(weights: Weights, named: CLIPConfig, source: str) -> CLIPConfig:
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
        config = _at_size(config, math.isqrt(patches.shape[1] - 1) * config.vision.patch_size)
    if words is not None and words.ndim == 2 and len(words) > 1:
        config.text.context_length = len(words)
    config.logit_bias = "logit_bias" in weights.state
    return config


def _at_size(config: CLIPConfig, size: int) -> CLIPConfig:
    """`config` for images of `size`; the margin around the crop keeps its share.

    Raises:
        InputError: the size is not a multiple of the patch.
    """
    fields = config.model_dump()
    before, fields["vision"]["image_size"] = config.vision.image_size, size
    if isinstance(config.preprocess.resize, int):
        fields["preprocess"]["resize"] = round(config.preprocess.resize * size / before)
    return parse_config(fields, f"images of {size}")


def _put(model: OpenCLIPModel, weights: Weights, source: str) -> None:
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


def _set_preprocess(
    model: OpenCLIPModel, name: str, of_folder: Mapping[str, Any], forced: Mapping[str, Any]
) -> None:
    """Put the statistics where open_clip's transforms take them from, and those that were asked for into the config."""
    from open_clip import set_model_preprocess_cfg
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    ours, size = model.config.preprocess, model.visual.image_size
    mode = "squash" if ours.resize == "squash" else "shortest"
    if ours.resize not in (None, "squash", size[0]):
        logging.warning(
            f"Model '{name}' is for images resized to {ours.resize}: open_clip resizes to {size[0]}."
        )
    fields = asdict(PreprocessCfg(size, "RGB", ours.mean, ours.std, ours.interpolation, mode))
    fields = merge_preprocess_dict(merge_preprocess_dict(fields, of_folder), forced)
    if fields["resize_mode"] != mode:
        raise InputError(
            f"resize_mode {fields['resize_mode']} cannot be given for {name}, whose weights have {mode}: leave it out"
        )
    whole = model.config.model_dump()
    whole["preprocess"] |= {"mean": fields["mean"], "std": fields["std"]}
    if fields["interpolation"] != "random":
        whole["preprocess"]["interpolation"] = fields["interpolation"]
    model.config = parse_config(whole, f"what is forced on the images of {name}")
    set_model_preprocess_cfg(model, fields)


def _cast(model: OpenCLIPModel, precision: str, device: str | torch.device) -> None:
    """Everything in one type but λ and the scalars: a scale of 14 in bfloat16 would not notice a step of training."""
    from open_clip import get_input_dtype

    model.to(device=device, dtype=get_input_dtype(precision))
    for scalar in (model.logit_scale, model.logit_bias):
        if scalar is not None:
            scalar.data = scalar.data.float()
