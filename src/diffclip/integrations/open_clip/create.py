"""Create our models in place of open_clip's `create_model`: weights, sizes, dtype, preparation of images."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from diffclip.config import CLIPConfig, name_of, parse_config, resized
from diffclip.errors import InputError
from diffclip.integrations.open_clip.model import OpenCLIPModel
from diffclip.loading import locate
from diffclip.weights import check_same, put_weights, read_weights

MODEL_KEY = "diffclip"  # of our configuration within open_clip's
USED = {
    *("model_name", "pretrained", "load_weights", "precision", "device", "cache_dir", "output_dict"),
    *("force_patch_dropout", "force_image_size", "force_preprocess_cfg"),
    *("require_pretrained", "model_kwargs"),
}
# reading never runs code here, and no tower has weights of its own to start from
_WITHOUT_EFFECT = {"weights_only", "pretrained_image", "pretrained_text", "pretrained_hf"}
_STARTS = {"init_logit_scale": "logit_scale", "init_logit_bias": "logit_bias"}

Given = Mapping[str, Any]
"""The arguments of `create_model` by name, defaults included."""


def find(given: Given) -> CLIPConfig | None:
    """Return the configuration of the model of ours that `create_model` is asked for; None if it is not ours."""
    from open_clip import factory

    schema, name = factory.parse_model_name(given["model_name"])
    fields = None if schema else factory.get_model_config(name.replace("/", "-"))
    return parse_config(fields[MODEL_KEY], name) if fields and MODEL_KEY in fields else None


def create(named: CLIPConfig, given: Given, signature: inspect.Signature) -> OpenCLIPModel:
    """Make the model on its device and in its dtype, in training mode as open_clip does.

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
    source = given["pretrained"]
    weights = read_weights(locate(source, given["cache_dir"])) if source and given["load_weights"] else None
    if weights is None and given["require_pretrained"]:
        raise InputError(f"{name} has no weights: give pretrained= a saved folder, a run folder or a file")
    config = named if weights is None or weights.config is None else weights.config
    if _kind(config) != _kind(named):
        if name_of(config) == name_of(named):
            check_same(named, config, source)
        held, wanted = (f"{name_of(one)} (λ_init {one.lambda_init})" for one in (config, named))
        raise InputError(f"{source} holds {held}, not {wanted}: name the model that it holds")
    fields = config.model_dump()
    fields["logit_bias"] |= starts.get("init_logit_bias") is not None
    if given["force_patch_dropout"] is not None:
        fields["vision"]["patch_dropout"] = given["force_patch_dropout"]
    config = parse_config(fields, f"what is forced on {name}")
    if weights is None and size is not None:
        config = resized(config, size)
    model = OpenCLIPModel(config)
    if weights is not None:
        state = dict(weights.state)
        if config.logit_bias:  # as in open_clip, a missing bias is 0
            state.setdefault("logit_bias", torch.zeros_like(model.logit_scale))
        put_weights(model, weights._replace(state=state), source)
    else:
        logging.warning(f"No pretrained weights loaded for model '{name}'. Model initialized randomly.")
        for key, parameter in _STARTS.items():
            if starts.get(key) is not None:
                torch.nn.init.constant_(model.get_parameter(parameter), starts[key])
    if size is not None and size != model.config.vision.image_size:
        model.set_image_size(size)
    _set_preprocess(model, name, given["force_preprocess_cfg"] or {})
    model.output_dict = bool(given["output_dict"])
    _cast(model, given["precision"], given["device"])
    return model


def _kind(config: CLIPConfig) -> tuple[Any, ...]:
    """Return what weights and a model's name must agree in; λ_init and parts count in differential layers alone."""
    attention = (config.vision.attention, config.text.attention)
    own = (config.lambda_init, config.differential) if "differential" in attention else ()
    return name_of(config), attention, own


def _set_preprocess(model: OpenCLIPModel, name: str, forced: Mapping[str, Any]) -> None:
    """Give open_clip's transforms our statistics, and the configuration those that the caller asks for."""
    from open_clip import set_model_preprocess_cfg
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    ours, size = model.config.preprocess, model.visual.image_size
    mode = "squash" if ours.resize == "squash" else "shortest"
    if ours.resize not in (None, "squash", size[0]):
        logging.warning(
            f"Model '{name}' is for images resized to {ours.resize}: open_clip resizes to {size[0]}."
        )
    fields = asdict(PreprocessCfg(size, "RGB", ours.mean, ours.std, ours.interpolation, mode))
    fields = merge_preprocess_dict(fields, forced)
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
    """Cast everything but λ and the scalars: in bfloat16 a step of training is too small to change a scale of 14."""
    from open_clip import get_input_dtype

    model.to(device=device, dtype=get_input_dtype(precision))
    for scalar in (model.logit_scale, model.logit_bias):
        if scalar is not None:
            scalar.data = scalar.data.float()
